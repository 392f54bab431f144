"""Offered copies: given for the very tensor, once, and only while nobody has written to it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from overdrive.datacache.offers import Offers, Trained, tensors_in  # noqa: E402

META = torch.device("meta")
READY = object()


def plain(device: Any) -> str:
    return f"a copy on {device}"


def offered(tensor: Any) -> Offers:
    offers = Offers()
    offers.add(tensor, META, lambda: READY)
    return offers


def test_a_copy_is_given_once() -> None:
    x = torch.zeros(3)
    offers = offered(x)
    assert offers.moved(x, plain, META) is READY
    assert offers.moved(x, plain, META) == plain(META)
    assert offers.given == 1


def test_another_tensor_or_device_gets_a_real_copy() -> None:
    x = torch.zeros(3)
    offers = offered(x)
    assert offers.moved(x.detach(), plain, META) == plain(META)
    assert offers.moved(x.clone(), plain, META) == plain(META)
    assert offers.moved(x, plain, torch.device("cuda", 1)) == plain("cuda:1")
    assert offers.moved(x, plain, META) is READY


@pytest.mark.parametrize("write", [lambda x: x.add_(1), lambda x: x[0].zero_(), lambda x: x.detach().mul_(2)])
def test_a_tensor_that_was_written_to_gets_a_real_copy(write: Any) -> None:
    x = torch.zeros(3)
    offers = offered(x)
    write(x)
    assert offers.moved(x, plain, META) == plain(META)


def test_what_cannot_be_watched_is_not_offered() -> None:
    with torch.inference_mode():
        x = torch.zeros(3)
    assert offered(x).moved(x, plain, META) == plain(META)
    y = torch.zeros(3, requires_grad=True)
    assert offered(y).moved(y, plain, META) == plain(META)


def test_an_offer_goes_with_its_tensor() -> None:
    offers = offered(torch.zeros(3))
    assert not offers._offers
    x = torch.zeros(3)
    offers = offered(x)
    offers.add(x, META, lambda: READY)  # again, for the same tensor
    del x
    assert not offers._offers


def test_a_program_that_takes_none_is_offered_no_more() -> None:
    offers = Offers()
    kept = [torch.zeros(3) for _ in range(8)]
    for tensor in kept:
        assert offers.welcome
        offers.add(tensor, META, lambda: READY)
    assert not offers.welcome
    offers.moved(kept[0], plain, META)
    assert offers.welcome


def test_tensors_are_found_in_any_batch() -> None:
    a, b, c = (torch.zeros(number) for number in (1, 2, 3))
    assert [each.numel() for each in tensors_in({"a": a, "more": [b, (c, "text", 4)]})] == [1, 2, 3]


def test_a_program_on_the_cpu_has_no_device() -> None:
    trained = Trained()
    assert trained.device is None
    model = torch.nn.Linear(2, 2)
    trained.made(torch.optim.SGD(model.parameters(), lr=0.1), [])
    assert trained.device is None
