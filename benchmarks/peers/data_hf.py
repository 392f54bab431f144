"""The images of data_plain.py with Hugging Face datasets: decoded on the fly (with_transform), or once (--mapped)."""

import sys
from pathlib import Path

import datasets
import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parent))

from data_plain import augment, measure, options, prepared, transform


def encoded(samples):
    paths, labels = map(list, zip(*samples, strict=True))
    return datasets.Dataset.from_dict({"image": paths, "label": labels}).cast_column("image", datasets.Image())


def build(folder, samples):
    encoded(samples).save_to_disk(str(folder / "encoded"))  # takes the files' content in


def build_mapped(folder, samples):
    features = datasets.Features({"image": datasets.Array3D((3, 32, 32), "float32"), "label": datasets.Value("int64")})
    mapped = encoded(samples).map(
        lambda batch: {"image": [transform(image).numpy() for image in batch["image"]], "label": batch["label"]},
        batched=True,
        features=features,
    )
    mapped.save_to_disk(str(folder / "mapped"))


def main():
    parser = options(__doc__)
    parser.add_argument("--mapped", action="store_true")
    args = parser.parse_args()
    datasets.disable_progress_bars()
    if args.mapped:
        dataset = datasets.load_from_disk(str(prepared(args, "hf-mapped", build_mapped) / "mapped"))
        dataset = dataset.with_format("torch")
    else:
        dataset = datasets.load_from_disk(str(prepared(args, "hf", build) / "encoded"))
        change = augment if args.augment else transform
        dataset = dataset.with_transform(
            lambda batch: {"image": [change(image) for image in batch["image"]], "label": batch["label"]}
        )
    torch.manual_seed(0)
    measure(DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers), args.epochs)


if __name__ == "__main__":
    main()
