"""The images of data_plain.py as MosaicML Streaming's MDS shards, read as its documentation says."""

import sys
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parent))

from data_plain import augment, measure, options, prepared, transform


def import_streaming():
    """It imports torchvision, which has no build for every torch: its missing operators are not needed here."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import_streaming.library = library  # else it is taken back
    import streaming

    return streaming


streaming = import_streaming()


class Streamed(streaming.StreamingDataset):
    def __init__(self, transform, **settings):
        super().__init__(**settings)
        self.transform = transform

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return self.transform(sample["image"]), sample["label"]


def build(folder, samples):
    with streaming.MDSWriter(out=str(folder / "mds"), columns={"image": "jpeg", "label": "int"}) as writer:
        for path, label in samples:
            writer.write({"image": Image.open(path), "label": label})


def main():
    args = options(__doc__).parse_args()
    folder = prepared(args, "streaming", build)
    torch.manual_seed(0)
    streaming.base.util.clean_stale_shared_memory()
    dataset = Streamed(
        augment if args.augment else transform, local=str(folder / "mds"), shuffle=True, batch_size=args.batch_size
    )
    measure(DataLoader(dataset, args.batch_size, num_workers=args.workers), args.epochs)


if __name__ == "__main__":
    main()
