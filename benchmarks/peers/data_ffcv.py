"""The images of data_plain.py in ffcv's own format, read as its documentation says: as JPEG, or decoded beforehand."""

import sys
from pathlib import Path

import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, RandomTranslate, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent))

from data_plain import MEAN, STD, measure, options, prepared


class Pictures:
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        return np.array(Image.open(path).convert("RGB")), label


def main():
    parser = options(__doc__)
    parser.add_argument("--raw", action="store_true", help="decoded beforehand")
    args = parser.parse_args()
    mode = "raw" if args.raw else "jpg"

    def build(folder, samples):
        fields = {"image": RGBImageField(write_mode=mode), "label": IntField()}
        DatasetWriter(str(folder / "images.beton"), fields, num_workers=2).from_indexed_dataset(Pictures(samples))

    folder = prepared(args, f"ffcv-{mode}", build)
    changes = [RandomHorizontalFlip(), RandomTranslate(padding=4)] if args.augment else []
    mean, std = (255 * each.flatten().numpy() for each in (MEAN, STD))
    pictures = [SimpleRGBImageDecoder(), *changes, NormalizeImage(mean, std, np.float32), ToTensor(), ToTorchImage()]
    loader = Loader(
        str(folder / "images.beton"),
        batch_size=args.batch_size,
        num_workers=args.workers,
        spec=OrderOption.RANDOM,
        drop_last=False,
        pipelines={"image": pictures, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    measure(loader, args.epochs)


if __name__ == "__main__":
    main()
