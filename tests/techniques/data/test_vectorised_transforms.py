"""The technique `vectorised_transforms` on real loaders: the same bits, the same draws, and refusals with reasons."""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
from PIL import Image  # noqa: E402
from torch.utils.data import ConcatDataset, DataLoader, Dataset, DistributedSampler, Subset, default_collate  # noqa: E402

from overdrive.techniques.catalogue import catalogue  # noqa: E402
from overdrive.worker.session import Session  # noqa: E402
from tests.techniques.data import standins  # noqa: E402
from tests.techniques.data.harness import Run, leaves, own_draws, seed, states  # noqa: E402

COUNT = 53
NAME = "vectorised_transforms"
NORM = ((0.5, 0.4, 0.3), (0.2, 0.21, 0.22))
Log = list[Any]


@cache
def real() -> Any:
    """torchvision's transforms, or None. Its wheels for CUDA want two operators that nobody here calls."""
    try:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
        from torchvision.transforms import transforms
    except Exception:
        return None
    return transforms


@pytest.fixture(params=["stand-ins", "torchvision"])
def T(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of transforms."""
    if request.param == "torchvision":
        module = real()
        if module is None:
            pytest.skip("torchvision cannot be imported")
        return module
    return _standins(monkeypatch)


def _standins(monkeypatch: pytest.MonkeyPatch) -> Any:
    added: dict[str, Any] = {}
    module = standins.install(added)
    monkeypatch.setitem(sys.modules, standins.NAME, added[standins.NAME])
    return module


@pytest.fixture
def S(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-ins."""
    return _standins(monkeypatch)


class Pictures(Dataset):
    """`modes` and `height` of its pictures; `after` is done to an image after its transforms."""

    def __init__(self, transform: Any, after: Any = None, mode: str = "RGB", label: Any = int) -> None:
        channels = (3,) if mode == "RGB" else ()
        self.pixels = np.random.default_rng(0).integers(0, 255, (COUNT, 12, 12, *channels), dtype=np.uint8)
        self.transform = transform
        self.after = after
        self.label = label

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        image = self.transform(Image.fromarray(self.pixels[index]))
        return image if self.after is None else self.after(image), self.label(index)


CHAINS: dict[str, Callable[[Any], list[Any]]] = {
    "usual": lambda t: [t.RandomCrop(12, padding=2), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(*NORM)],
    "flip only": lambda t: [t.RandomHorizontalFlip(0.3), t.ToTensor()],
    "three flips": lambda t: [
        t.RandomVerticalFlip(),
        t.RandomHorizontalFlip(),
        t.ToTensor(),
        t.RandomVerticalFlip(0.9),
    ],
    "no chance": lambda t: [t.RandomHorizontalFlip(0.0), t.RandomVerticalFlip(1.0), t.RandomCrop(12), t.ToTensor()],
    "coloured edges": lambda t: [t.RandomCrop(11, padding=(1, 3), fill=(9, 8, 7)), t.ToTensor()],
    "mirrored edges": lambda t: [t.RandomCrop(10, padding=3, padding_mode="reflect"), t.ToTensor()],
    "on tensors": lambda t: [t.ToTensor(), t.RandomCrop(9, padding=(1, 2, 3, 4), fill=0.25), t.RandomHorizontalFlip()],
    "jitter": lambda t: [t.ColorJitter(0.4, 0.9, 1.5), t.RandomHorizontalFlip(), t.RandomCrop(12, 1), t.ToTensor()],
    "hue and gray": lambda t: [t.ColorJitter(0.4, 0.4, 0.4, 0.5), t.RandomGrayscale(0.3), t.ToTensor()],
    "image by image": lambda t: [t.RandomResizedCrop(8), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(*NORM)],
    "image by image, then erased": lambda t: [
        t.RandomHorizontalFlip(),
        t.RandomRotation(20),
        t.ColorJitter(0.3),
        t.ToTensor(),
        t.RandomErasing(0.7),
    ],
    "brightness alone": lambda t: [t.RandomVerticalFlip(), t.ColorJitter(0.7), t.ToTensor(), t.Normalize(*NORM)],
    "erasing": lambda t: [t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(*NORM), t.RandomErasing(0.7)],
    "erasing with noise": lambda t: [t.ToTensor(), t.RandomErasing(0.7, value="random")],
}


def epochs(loader: Any, count: int = 3, stop: int | None = 3, between: Callable[[Any], None] | None = None) -> Log:
    """All that can be seen of some epochs, the first of them broken off; the program draws between the batches."""
    seen: Log = []
    for epoch in range(count):
        try:
            for number, batch in enumerate(loader):
                seen += [list(leaves(batch)), own_draws()]
                if epoch == 0 and number == stop:
                    break
        except ZeroDivisionError as error:
            seen.append(str(error))
        seen.append(states())
        if between is not None:
            between(loader)
    return seen


def left_out_of(make: Callable[[], Any], log: Log, **how: Any) -> str | None:
    """Runs it under the technique; returns why that was left out, if it was."""
    seed()
    with Run(NAME) as run:
        log += epochs(make(), **how)
    return run.reason if run.left_out else None


def both(make: Callable[[], Any], **how: Any) -> str | None:
    """Asserts that a program sees the same with and without the technique; returns why it was left out."""
    seed()
    plain = epochs(make(), **how)
    log: Log = []
    reason = left_out_of(make, log, **how)
    assert len(plain) == len(log)
    for number, (one, other) in enumerate(zip(plain, log, strict=True)):
        assert one == other, number
    return reason


def loader(transform: Any, **how: Any) -> Any:
    return DataLoader(Pictures(transform), 7, shuffle=True, **how)


WORKERS: dict[str, dict[str, Any]] = {
    "no workers": {},
    "two workers": {"num_workers": 2},
    "persistent workers": {"num_workers": 2, "persistent_workers": True},
    "three that look far ahead": {"num_workers": 3, "persistent_workers": True, "prefetch_factor": 3},
}


# Each in the loop itself, and with workers one of each kind: an even and an odd number of draws, and one by one.
CASES = [
    *((name, "no workers") for name in CHAINS),
    *((name, workers) for name in ("usual", "flip only", "erasing") for workers in list(WORKERS)[1:]),
]


@pytest.mark.parametrize(("name", "workers"), CASES)
def test_batches_and_random_states_are_the_same_in_every_bit(name: str, workers: str, T: Any) -> None:
    chain = T.Compose(CHAINS[name](T))
    assert both(lambda: loader(chain, **WORKERS[workers])) is None


@pytest.mark.parametrize("workers", ["no workers", "persistent workers"])
@pytest.mark.parametrize("first", [True, False])
def test_version_2_of_torchvision(workers: str, first: bool) -> None:
    if real() is None:
        pytest.skip("torchvision cannot be imported")
    from torchvision.transforms import v2

    crop, flip = v2.RandomCrop(12, padding=(1, 2, 3, 2), fill=7), v2.RandomHorizontalFlip(0.3)
    colours = [v2.ColorJitter(0.4, 0.9, (0.2, 2.5), 0.3), v2.RandomGrayscale(0.4)]
    rest = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(*NORM)]
    chain = v2.Compose([v2.ToImage(), crop, flip, *rest] if first else [*colours, crop, flip, v2.ToImage(), *rest])
    assert both(lambda: loader(chain, **WORKERS[workers])) is None


@pytest.mark.parametrize("picture", [True, False])
def test_version_2_image_by_image(picture: bool) -> None:
    if real() is None:
        pytest.skip("torchvision cannot be imported")
    from torchvision.transforms import v2

    own = [v2.RandomResizedCrop(9), v2.TrivialAugmentWide(), v2.RandomHorizontalFlip()]
    rest = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(*NORM)]
    chain = v2.Compose([*own, v2.ToImage(), *rest] if picture else [v2.ToImage(), *own, *rest])
    assert both(lambda: loader(chain)) is None


class Sheared:
    """A random transform of the user's own, from Python's generator, which fails on some images."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def __call__(self, image: Any) -> Any:
        turned = image.rotate(90 * random.randrange(4))
        return 1 / 0 if self.fails and random.random() < 0.05 else turned


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_transforms_of_the_users_own_are_done_image_by_image(mode: str, S: Any) -> None:
    chain = S.Compose([S.RandomCrop(11, 1), Sheared(), S.RandomHorizontalFlip(), S.ToTensor()])
    assert both(lambda: DataLoader(Pictures(chain, mode=mode), 7, shuffle=True)) is None


def test_a_transform_of_the_users_own_fails_at_the_same_batch(S: Any) -> None:
    chain = S.Compose([S.RandomCrop(11, 1), Sheared(fails=True), S.ToTensor()])
    both(lambda: DataLoader(Pictures(chain), 7, shuffle=True), count=5, stop=None)


def test_all_is_kept_before_the_first_batch_of_a_trial(T: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERDRIVE_PREFILL", "1")
    chain = T.Compose(CHAINS["usual"](T))
    assert both(lambda: loader(chain)) is None


@pytest.mark.parametrize(
    ("name", "bulk"), [("usual", True), ("three flips", True), ("no chance", True), ("erasing", False)]
)
def test_numbers_are_drawn_at_once_where_that_comes_to_the_same(name: str, bulk: bool, S: Any) -> None:
    def see(loader: Any) -> None:
        tails.append(catalogue()[NAME].manager.kept_for(loader).source.tail)  # type: ignore[attr-defined]

    tails: list[Any] = []
    assert left_out_of(lambda: loader(S.Compose(CHAINS[name](S))), [], between=see) is None
    assert tails[0].leaf == 0 and all(tail is tails[0] for tail in tails)
    assert (tails[0].in_bulk and None not in [step.words for step in tails[0].steps]) is bulk


def test_numbers_are_drawn_one_by_one_where_they_are_of_another_kind(S: Any) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # then a fraction takes two words
    try:
        assert both(lambda: loader(S.Compose(CHAINS["usual"](S)))) is None
    finally:
        torch.set_default_dtype(before)


def test_gray_pictures_subsets_and_a_list_of_ones_own(S: Any) -> None:
    class Own:
        def __init__(self, each: Any) -> None:
            self.each = tuple(each)

        def __call__(self, image: Any) -> Any:
            for transform in self.each:
                image = transform(image)
            return image

    def make() -> Any:
        chain = Own([S.RandomHorizontalFlip(), S.ColorJitter(0.5, 0.5, 0.5), S.ToTensor()])
        parts = [Subset(Pictures(chain, mode="L"), range(30)), Pictures(chain, mode="L", label=float)]
        return DataLoader(ConcatDataset(parts[:1] * 2), 7, shuffle=True)

    assert both(make) is None


def test_each_picture_is_decoded_once(S: Any, tmp_path: Path) -> None:
    place = str(tmp_path / "fetched")
    number = os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    class Counting(Pictures):
        def __getitem__(self, index: int) -> Any:
            os.write(number, b".")
            return super().__getitem__(index)

    def see(loader: Any) -> None:
        counts.append(Path(place).stat().st_size)

    counts: list[int] = []
    chain = S.Compose(CHAINS["usual"](S))
    assert left_out_of(lambda: DataLoader(Counting(chain), 7, shuffle=True), [], stop=None, between=see) is None
    os.close(number)
    assert counts[0] > COUNT and counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fixed_share_is_all_that_is_read_and_kept(S: Any, folder: Path, tmp_path: Path, workers: int) -> None:
    place = tmp_path / "fetched"
    number = os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND)

    class Counting(Pictures):
        def __getitem__(self, index: int) -> Any:
            os.write(number, f"{index}\n".encode())
            return super().__getitem__(index)

    chain = S.Compose(CHAINS["usual"](S))

    def make() -> Any:
        data = Counting(chain)
        sampler: Any = DistributedSampler(data, num_replicas=2, rank=1, shuffle=False)
        return DataLoader(data, 7, sampler=sampler, num_workers=workers)

    assert both(make, stop=None) is None
    os.close(number)
    share = set(DistributedSampler(range(COUNT), num_replicas=2, rank=1, shuffle=False))  # type: ignore[arg-type]
    assert len(share) == 27 and set(map(int, place.read_text().split())) == share
    (table,) = folder.glob("*/0.raw")
    assert table.stat().st_size == len(share) * 3 * 12 * 12


def test_the_next_session_finds_the_pictures_on_disk(S: Any, folder: Path) -> None:
    make = lambda: loader(S.Compose(CHAINS["usual"](S)))  # noqa: E731
    assert both(make, stop=None) is None
    (place,) = [each for each in folder.iterdir() if not each.name.startswith("partial-")]
    assert (place / "0.raw").stat().st_size == COUNT * 3 * 12 * 12  # bytes, not floats
    before = (place / "0.raw").stat().st_mtime_ns
    assert both(make, stop=None) is None
    assert [each.name for each in folder.iterdir()] == [place.name]
    assert (place / "0.raw").stat().st_mtime_ns == before


# -- refusals -------------------------------------------------------------------------------------


class Twice:
    """A transform of the user's own."""

    def __call__(self, image: Any) -> Any:
        return image * 2


def _mixed(samples: Any) -> Any:
    images, labels = default_collate(samples)
    return images.flip(0), labels


def _refused(S: Any) -> dict[str, tuple[Any, str]]:
    usual = CHAINS["usual"](S)

    class OwnFlip(S.RandomHorizontalFlip):  # type: ignore[misc]
        pass

    def of(transform: Any, **how: Any) -> Any:
        return DataLoader(Pictures(S.Compose(transform), **how), 7, shuffle=True)

    other = Pictures(S.Compose(list(usual)))
    return {
        "nothing random": (of([S.ToTensor()]), "no list of known random transforms"),
        "only a subclass": (of([OwnFlip(), S.ToTensor()]), "no list of known random transforms"),
        "an unknown one": (of([*usual, Twice()]), "its transform Twice is not known"),
        "a subclass among them": (of([*usual, OwnFlip()]), "its transform OwnFlip is not known"),
        "an unknown random one before": (of([Sheared(), *usual]), "draws random numbers too"),
        "two lists": (DataLoader(ConcatDataset([other, of(usual).dataset]), 7), "more than one list"),
        "image by image in workers": (
            DataLoader(Pictures(S.Compose([usual[0], Sheared(), S.ToTensor()])), 7, num_workers=2),
            "its transform Sheared is done image by image, which its workers do side by side",
        ),
        "changed afterwards": (of(usual, after=lambda image: image.clamp(-9, 9)), "once and unchanged"),
        "changed in place": (of(usual, after=torch.relu_), "come out different"),
        "random labels": (of(usual, label=lambda _: random.random()), "draws random numbers too"),
        "used twice": (of(usual, after=lambda image: (image, image)), "once and unchanged"),
        "batches mixed": (
            DataLoader(other, 7, shuffle=True, collate_fn=_mixed),
            "more than images stacked",
        ),
        "too small": (of([S.RandomCrop(20), S.ToTensor()]), "smaller than what is to be cut"),
        "draws by worker": (
            DataLoader(other, 7, num_workers=2, worker_init_fn=lambda number: torch.manual_seed(number)),
            "worker_init_fn sets torch's random generator",
        ),
    }


@pytest.mark.parametrize("name", list(_refused(standins)))  # not the loaders: they would live on
def test_what_it_cannot_do_is_refused_with_the_reason(name: str, S: Any) -> None:
    made, expected = _refused(S)[name]
    seed()
    log: Log = []
    if name == "too small":  # the program itself fails on these
        with pytest.raises((ValueError, RuntimeError)):
            left_out_of(lambda: made, log)
        return
    assert expected in (left_out_of(lambda: made, log) or "")
    seed()
    assert log == epochs(_refused(S)[name][0])


def test_a_worker_init_fn_that_seeds_others_is_followed(S: Any) -> None:
    def init(number: int) -> None:
        random.seed(number)
        np.random.seed(torch.initial_seed() % 2**32)

    chain = S.Compose(CHAINS["usual"](S))
    assert both(lambda: loader(chain, num_workers=2, worker_init_fn=init)) is None


def _other_order(self: Any, image: Any) -> Any:
    image = self.pad(image)
    left, top = (torch.randint(0, 5, size=(1,)).item() for _ in range(2))
    return image.crop((left, top, left + 12, top + 12))


def _never_at_the_edge(self: Any, image: Any) -> Any:
    image = self.pad(image)
    top, left = (min(3, int(torch.randint(0, 5, size=(1,)).item())) for _ in range(2))
    return image.crop((left, top, left + 12, top + 12))


def _rarer(self: Any, image: Any) -> Any:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if torch.rand(1) < 0.8 * self.p else image


def _other_generator(self: Any, image: Any) -> Any:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < self.p else image


def _one_draw_more(self: Any, image: Any) -> Any:
    torch.rand(1)
    return image


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        ("RandomCrop", _other_order),
        ("RandomCrop", _never_at_the_edge),
        ("RandomHorizontalFlip", _rarer),
        ("RandomHorizontalFlip", _other_generator),
        ("RandomHorizontalFlip", _one_draw_more),
        ("Normalize", _one_draw_more),
    ],
)
def test_another_distribution_under_the_same_name_is_found_out(
    kind: str, call: Any, S: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getattr(S, kind), "__call__", call)
    reason = both(lambda: loader(S.Compose(CHAINS["usual"](S))))
    assert reason is not None and ("come out different" in reason or "random numbers" in reason)


# -- changes, errors, undo ------------------------------------------------------------------------


def test_changes_to_the_data_set_are_followed(S: Any) -> None:
    changes: list[Callable[[Any], None]] = [
        lambda data: setattr(data, "pixels", data.pixels[::-1].copy()),
        lambda data: setattr(data, "transform", S.Compose([S.RandomVerticalFlip(), S.ToTensor()])),
        lambda data: data.transform.transforms.insert(0, S.RandomHorizontalFlip(1.0)),
        lambda data: setattr(data.transform.transforms[0], "p", 0.25),
        lambda data: data.transform.transforms.append(Twice()),
    ]

    def between(loader: Any) -> None:
        if left:
            left.pop(0)(loader.dataset)

    left: list[Any] = []

    def make() -> Any:
        left[:] = changes
        return loader(S.Compose(CHAINS["usual"](S)))

    both(make, count=7, between=between)


def test_errors_of_the_program_come_at_the_same_batch(S: Any) -> None:
    def label(index: int) -> float:
        return 1 / (index - 20)

    chain = S.Compose(CHAINS["usual"](S))
    both(lambda: DataLoader(Pictures(chain, label=label), 7, shuffle=True), stop=None)


def test_it_leaves_no_trace(S: Any) -> None:
    chain = S.Compose(CHAINS["usual"](S))
    data = Pictures(chain)
    before = dict(vars(data)), list(chain.transforms)
    made = DataLoader(data, 7, shuffle=True, num_workers=2, persistent_workers=True)
    seed()
    with Session([(NAME, {})]):
        assert sum(len(images) for images, _ in made) == COUNT
        assert made._iterator is not None
    assert made._iterator is None and made.num_workers == 2
    assert all(vars(data)[name] is value for name, value in before[0].items()) and chain.transforms == before[1]
    plain = DataLoader(data, 7, shuffle=True)
    seed()
    expected = epochs(plain)
    seed()
    assert epochs(plain) == expected


def test_it_stands_beside_the_other_techniques_of_the_family(S: Any) -> None:
    def make() -> Any:
        return loader(S.Compose(CHAINS["usual"](S)), num_workers=2)

    seed()
    plain = epochs(make())
    gc.collect()
    seed()
    with Session(
        [("sample_cache", {}), (NAME, {}), ("loader_workers", {"workers": 2, "persistent": False})]
    ) as session:
        assert epochs(make()) == plain
    assert NAME not in session.seams.left_out
