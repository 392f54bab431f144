"""The images of data_plain.py as WebDataset shards, read as its documentation says (WebLoader, shuffle buffer)."""

import sys
from pathlib import Path

import torch
import webdataset as wds

sys.path.insert(0, str(Path(__file__).resolve().parent))

from data_plain import augment, measure, options, prepared, transform

SHARDS = 16


def build(folder, samples):
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0)).tolist()
    with wds.ShardWriter(str(folder / "%06d.tar"), maxcount=-(-len(samples) // SHARDS), verbose=0) as writer:
        for number in order:
            path, label = samples[number]
            writer.write({"__key__": f"{number:06d}", "jpg": Path(path).read_bytes(), "cls": label})


def same(label):
    return label


def main():
    args = options(__doc__).parse_args()
    folder = prepared(args, "webdataset", build)
    torch.manual_seed(0)
    dataset = (
        wds.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=SHARDS)
        .shuffle(1000)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(augment if args.augment else transform, same)
        .batched(args.batch_size)
    )
    measure(wds.WebLoader(dataset, batch_size=None, num_workers=args.workers), args.epochs)


if __name__ == "__main__":
    main()
