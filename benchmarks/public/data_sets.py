"""Small data sets for the public programs, in the formats that they read: real ones where they lie at hand, else made.

Each function writes to `at` and returns a word on what it wrote. `real` is a folder with `mnist/` (the four IDX files,
gzip) and `cifar10-jpeg-train.zip`, `cifar10-jpeg-test.zip` (PART/CLASS/NNNN.jpg), or lacks them. What is made comes
from a fixed seed.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

SEED = 20
MADE = "made"
HERE = Path(__file__).resolve().parent
_SIDE = 28


def _rng() -> np.random.Generator:
    return np.random.default_rng(SEED)


def mnist(at: Path, real: Path, train: int, test: int) -> str:
    """IDX files as torchvision's MNIST reads them: the first digits of each part."""
    source = real / "mnist"
    for part, count in (("train", train), ("t10k", test)):
        images, labels = at / f"{part}-images-idx3-ubyte", at / f"{part}-labels-idx1-ubyte"
        if source.is_dir():
            pixels = gzip.decompress((source / f"{images.name}.gz").read_bytes())[16 : 16 + count * _SIDE**2]
            digits = gzip.decompress((source / f"{labels.name}.gz").read_bytes())[8 : 8 + count]
        else:
            rng = _rng()
            classes = rng.integers(0, 10, count, dtype=np.uint8)
            patterns = np.kron(rng.random((10, 7, 7)) > 0.6, np.ones((4, 4))) * 200
            noise = rng.integers(0, 56, (count, _SIDE, _SIDE), dtype=np.uint8)
            pixels, digits = (patterns[classes].astype(np.uint8) + noise).tobytes(), classes.tobytes()
        images.write_bytes(struct.pack(">4i", 2051, len(digits), _SIDE, _SIDE) + pixels)
        labels.write_bytes(struct.pack(">2i", 2049, len(digits)) + digits)
    return "MNIST" if source.is_dir() else MADE


def _picture(rng: np.random.Generator, size: int, kind: int = 0) -> Image.Image:
    """Smooth colours with noise; pictures of one kind have the same colours."""
    coarse = np.random.default_rng(kind).random((4, 4, 3)) * 180 + rng.random((4, 4, 3)) * 60
    smooth = np.asarray(Image.fromarray(coarse.astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC))
    noise = rng.integers(-12, 13, (size, size, 3))
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def image_files(at: Path, real: Path, part: str, per_class: int, size: int) -> str:
    """JPEG files in a folder for each of ten classes."""
    source = real / f"cifar10-jpeg-{part}.zip"
    if source.exists():
        with zipfile.ZipFile(source) as archive:
            counts: dict[str, int] = {}
            for name in sorted(each for each in archive.namelist() if each.endswith(".jpg")):
                folder = Path(name).parent.name
                counts[folder] = counts.get(folder, 0) + 1
                if counts[folder] <= per_class:
                    data = archive.read(name)
                    (at / folder).mkdir(exist_ok=True)
                    target = at / folder / Path(name).name
                    image = Image.open(io.BytesIO(data))
                    if image.size == (size, size):
                        target.write_bytes(data)
                    else:
                        image.resize((size, size), Image.Resampling.BICUBIC).save(target, quality=90)
        return "CIFAR-10"
    rng = _rng()
    for kind in range(10):
        (at / str(kind)).mkdir(exist_ok=True)
        for index in range(per_class):
            _picture(rng, size, kind).save(at / str(kind) / f"{index:04}.jpg", quality=90)
    return MADE


def flat_images(at: Path, real: Path, count: int, size: int) -> str:
    """JPEG files in one folder."""
    rng = _rng()
    for index in range(count):
        _picture(rng, size, index).save(at / f"{index:04}.jpg", quality=90)
    return MADE


def masked_images(at: Path, real: Path, count: int, size: int) -> str:
    """imgs/NAME.jpg and masks/NAME_mask.gif: a bright disc on smooth colours."""
    rng = _rng()
    for folder in ("imgs", "masks"):
        (at / folder).mkdir(exist_ok=True)
    rows, columns = np.mgrid[:size, :size]
    for index in range(count):
        (row, column), radius = rng.uniform(0.3, 0.7, 2), rng.uniform(0.1, 0.3)
        disc = (rows - row * size) ** 2 + (columns - column * size) ** 2 < (radius * size) ** 2
        picture = np.asarray(_picture(rng, size)).astype(int) + 60 * disc[..., None]
        name = f"{index:04}"
        Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).save(at / "imgs" / f"{name}.jpg", quality=90)
        Image.fromarray(disc.astype(np.uint8)).save(at / "masks" / f"{name}_mask.gif")
    return MADE


def _names(count: int, rng: np.random.Generator) -> list[str]:
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    return sorted({"".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(2 * count)})[:count]


def _text(length: int, vocabulary: int, rng: np.random.Generator) -> list[str]:
    """Words as frequent as Zipf has it; each depends on the word before."""
    names = rng.permutation(_names(vocabulary, rng))
    ranks = np.minimum(rng.zipf(1.3, length) - 1, len(names) - 1)
    follows = rng.random(length) < 0.5
    for index in range(1, length):
        if follows[index]:
            ranks[index] = (7 * ranks[index - 1] + 3) % len(names)
    return [str(names[rank]) for rank in ranks]


def words(at: Path, real: Path, train: int, test: int, vocabulary: int) -> str:
    """train.txt, valid.txt and test.txt: 20 words a line."""
    rng = _rng()
    text = _text(train + 2 * test, vocabulary, rng)
    for name, start, end in (("train", 0, train), ("valid", train, train + test), ("test", train + test, len(text))):
        lines = (" ".join(text[each : min(end, each + 20)]) for each in range(start, end, 20))
        (at / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return MADE


def characters(at: Path, real: Path, length: int) -> str:
    """train.bin, val.bin and meta.pkl, as nanoGPT's prepare.py writes them."""
    text = " ".join(_text(length // 4, 2000, _rng()))[:length]
    letters = sorted(set(text))
    index = {letter: number for number, letter in enumerate(letters)}
    numbers = np.array([index[letter] for letter in text], dtype=np.uint16)
    numbers[: length * 9 // 10].tofile(at / "train.bin")
    numbers[length * 9 // 10 :].tofile(at / "val.bin")
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": index}
    (at / "meta.pkl").write_bytes(pickle.dumps(meta))
    return MADE


def citations(at: Path, real: Path, nodes: int, edges: int, features: int, classes: int) -> str:
    """cora.content and cora.cites: papers of a class have words in common, and cite each other more often."""
    rng = _rng()
    labels = rng.integers(0, classes, nodes)
    typical = rng.random((classes, features)) < 0.02
    has = (rng.random((nodes, features)) < 0.008) | (typical[labels] & (rng.random((nodes, features)) < 0.4))
    has[:, 0] |= ~has.any(axis=1)
    lines = ("\t".join(map(str, [node, *has[node].astype(int), f"class{labels[node]}"])) for node in range(nodes))
    (at / "cora.content").write_text("\n".join(lines) + "\n")
    by_class = [np.flatnonzero(labels == each) for each in range(classes)]
    pairs: set[tuple[int, int]] = set()
    while len(pairs) < edges:
        one = int(rng.integers(nodes))
        other = int(rng.choice(by_class[labels[one]]) if rng.random() < 0.8 else rng.integers(nodes))
        if one != other and (other, one) not in pairs:
            pairs.add((one, other))
    (at / "cora.cites").write_text("".join(f"{one}\t{other}\n" for one, other in sorted(pairs)))
    return MADE


def waves(at: Path, real: Path, count: int, length: int) -> str:
    """traindata.pt: sine waves that start anywhere."""
    import torch

    starts = _rng().integers(-80, 80, (count, 1))
    torch.save(np.sin((np.arange(length) + starts) / 20.0), at / "traindata.pt")
    return MADE


def sentence_pairs(at: Path, real: Path, train: int, test: int) -> str:
    """A data set `mrpc` as the `datasets` library reads it from a folder: pairs that say the same, or do not."""
    rng = _rng()
    text = _text(40 * (train + test), 2000, rng)
    for part, count in (("train", train), ("validation", test)):
        rows = []
        for index in range(count):
            length = int(rng.integers(12, 30))
            first, label = [text.pop() for _ in range(length)], int(rng.integers(2))
            second = list(rng.permutation(first)) if label else [str(each) for each in rng.choice(text, length)]
            row = {"sentence1": " ".join(first), "sentence2": " ".join(second), "label": label, "idx": index}
            rows.append(json.dumps(row))
        (at / f"{part}.jsonl").write_text("\n".join(rows) + "\n")
    parts = "".join(f"  - split: {part}\n    path: {part}.jsonl\n" for part in ("train", "validation"))
    (at / "README.md").write_text(f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{parts}---\n")
    return MADE


def small_bert(at: Path, real: Path) -> str:
    """A random BERT of two layers with its tokenizer, for the words of `sentence_pairs`."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_names(2000, _rng())]
    (at / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    BertTokenizerFast(str(at / "vocab.txt"), do_lower_case=False).save_pretrained(at)
    torch.manual_seed(SEED)
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    BertForSequenceClassification(BertConfig(vocab_size=len(vocabulary), **shape)).save_pretrained(at)
    return MADE


def glue_metric(at: Path, real: Path) -> str:
    """The metric `glue`, which `evaluate` would download."""
    shutil.copy(HERE / "glue_metric.py", at / "glue.py")
    return MADE
