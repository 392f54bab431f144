"""Values come back from their bytes the same in every bit, kind and stride; what would not is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
Image = pytest.importorskip("PIL.Image")

from overdrive.datacache.decoding import decode  # noqa: E402
from overdrive.datacache.encoding import encode  # noqa: E402
from overdrive.datacache.forms import Ragged  # noqa: E402
from overdrive.datacache.sameness import same  # noqa: E402
from overdrive.datacache.table import Table, bytes_of, same_bits  # noqa: E402
from overdrive.forks.layout import Unfit, layout_of  # noqa: E402
from overdrive.worker.torch.checksums import checksum  # noqa: E402

NUMBERS = np.random.default_rng(0)
PIXELS = NUMBERS.integers(0, 255, (7, 9, 3), dtype=np.uint8)


def frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


def with_info(picture: Any) -> Any:
    picture.info = {"dpi": (72, 72), "exif": b"\0\1", "progressive": 1}
    return picture


VALUES: dict[str, Any] = {
    "numbers": (1, -(2**62), 2.5, float("nan"), -0.0, True, None, np.float32(0.1), np.int64(7)),
    "bytes": (b"", b"\0raw"),
    "texts": ("", "häl\ud800", "x" * 254),
    "long texts": ("x" * 255, "é\ud800" * 9000),
    "nothing": (
        torch.zeros(0),
        torch.zeros(0, 4).double(),
        torch.zeros(3, 0, 2),
        np.zeros(0),
        np.zeros((0, 4), "int16"),
    ),
    "containers": ([1, (2, {"a": [3.0], 4: ()})], {}),
    "array": NUMBERS.random((3, 4, 5)),
    "permuted array": NUMBERS.random((3, 4, 5)).transpose(2, 0, 1),
    "read-only array": frozen(NUMBERS.integers(0, 9, (4,))),
    "scalars": (np.array(3.0), torch.tensor(4)),
    "tensor": torch.rand(3, 4, 5),
    "permuted tensor": torch.rand(6, 5, 1).permute(2, 0, 1),
    "bfloat16": torch.rand(5).bfloat16(),
    "permuted bfloat16": torch.rand(2, 3, 4).bfloat16().permute(2, 0, 1),
    "float8": torch.rand(5).to(torch.float8_e4m3fn),
    "half, unsigned": (torch.rand(3).half(), torch.arange(5).to(torch.uint16)),
    "complex": torch.rand(2, 3, dtype=torch.complex64).t(),
    "two in one": torch.rand(2, 2, 1).expand(2, 2, 1),
    "bool": torch.rand(5) > 0.5,
    "picture": with_info(Image.fromarray(PIXELS)),
    **{
        mode: Image.fromarray(PIXELS).convert(mode)
        for mode in ("1", "L", "LA", "RGBA", "CMYK", "YCbCr", "HSV", "F", "I")
    },
}


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back(name: str) -> None:
    values = (VALUES[name],)
    form, row = encode(values)
    back = decode(form, row)
    assert same(values, back)
    assert encode(back)[0] == form
    assert eval(repr(form)) == form  # plain data


def test_what_was_one_object_is_one_again() -> None:
    items, tensor = [1], torch.rand(2)
    back = decode(*encode((items, tensor, {"a": items, "b": (tensor,)})))
    assert back[2]["a"] is back[0] and back[2]["b"][0] is back[1]


def test_changing_them_does_not_change_the_row() -> None:
    form, row = encode((torch.zeros(3), np.zeros(3)))
    first = decode(form, row)
    first[0].add_(1)
    first[1][:] = 1
    assert same(decode(form, row), (torch.zeros(3), np.zeros(3)))


def test_rows_of_several_forms_say_which_is_theirs() -> None:
    values = [(torch.rand(size, 3), "x" * size) for size in (1, 50, 7)]
    encoded = [encode(each) for each in values]
    ragged = Ragged.of(encoded)
    for value, (form, row) in zip(values, encoded, strict=True):
        whole = np.zeros(ragged.room, dtype=np.uint8)
        joined = ragged.join(form, row)
        whole[: len(joined)] = joined
        assert ragged.filled(whole) == len(joined) and same(decode(*ragged.parts(whole)), value)
    with pytest.raises(Unfit, match="much larger"):
        ragged.join(*encode((torch.rand(50000),)))


BASE = torch.rand(4, 4)


def named(thing: Any) -> Any:
    """As a data set hands on which sample it is, for a `collate_fn` of its own."""
    thing.sample_id = 3
    return thing


REFUSED: dict[str, tuple[Any, str]] = {
    "an object": (object(), "builtins.object"),
    "a large number": (2**70, "large number"),
    "a subclass": (type("Own", (dict,), {})(), "Own"),
    "holes": (NUMBERS.random((4, 4))[:, ::2], "unusual"),
    "backwards": (NUMBERS.random((4, 4))[::-1], "unusual"),
    "shared memory": ([BASE, BASE[:2]], "share memory"),
    "a gradient": (torch.rand(3, requires_grad=True), "special"),
    "a conjugate": (torch.rand(3, dtype=torch.complex64).conj(), "special"),
    "a negative": (torch._neg_view(torch.rand(3)), "special"),
    "few of many": (torch.eye(3).to_sparse(), "special"),
    "no memory": (torch.empty(3, device="meta"), "special"),
    "the same again and again": (torch.rand(1).expand(3), "unusual"),
    "objects": (np.array([object()]), "kind object"),
    "nothing in an odd order": (torch.zeros(0, 4).t(), "unusual"),
    "part of nothing": (np.zeros((4, 8))[:0, ::2], "unusual"),
    "a palette": (Image.fromarray(PIXELS).convert("P"), "mode P"),
    "a function": (len, "builtin_function"),
    "a tensor with a name": (named(torch.rand(3)), "special"),
    "a picture with a name": (named(Image.fromarray(PIXELS)), "more to it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    value, reason = REFUSED[name]
    with pytest.raises(Unfit) as refused:
        encode((value,))
    assert re.search(reason, str(refused.value)), refused.value


def test_refuses_what_was_made_for_inference() -> None:
    with torch.inference_mode():
        value = torch.rand(3)
    with pytest.raises(Unfit, match="special"):
        encode((value,))


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "sign of zero": (0.0, -0.0),
    "kind": (1, True),
    "number": (np.float32(1), np.float64(1)),
    "container": ([1], (1,)),
    "order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "stride": (torch.zeros(2, 2), torch.zeros(2, 2).t().contiguous().t()),
    "bit": (torch.zeros(2), torch.tensor([0.0, -0.0])),
    "pixel": (Image.new("L", (2, 2), 1), Image.new("L", (2, 2), 2)),
    "info": (Image.new("L", (2, 2)), with_info(Image.new("L", (2, 2)))),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_tells_apart(name: str) -> None:
    one, other = DIFFERENT[name]
    assert same(one, one) and not same(one, other) and not same([one], [other])


def test_what_comes_back_can_be_resized() -> None:
    values = (np.arange(5), torch.arange(5))
    form, row = encode(values)
    array, tensor = decode(form, row)
    array.resize(9, refcheck=False)
    tensor.resize_(9)
    assert array[:5].tolist() == tensor[:5].tolist() == list(range(5))
    for each in (values[1], torch.arange(3, dtype=torch.bfloat16)):
        encode((each,))
        each.resize_(9)  # what was encoded goes on to the program


def test_a_batch_that_was_looked_at_can_be_resized() -> None:
    batch, layout = torch.zeros(4, 3), layout_of(torch.zeros(4, 3))
    table = Table.in_memory(layout, 4)
    assert table.write(np.arange(4), batch) and same_bits(batch, batch.clone(), layout)
    before = checksum(batch)
    gathered = table.gather(np.arange(4))
    assert before == checksum(gathered)
    for each in (batch, gathered):
        each.resize_(8, 3)


def test_what_is_special_about_a_tensor_is_no_error() -> None:
    class Own(torch.Tensor):
        pass

    kinds = [torch.ones(2, 2, requires_grad=True), torch._neg_view(torch.ones(2, 2)), torch.ones(2, 2).as_subclass(Own)]
    kinds.append(torch.ones(2, 2, dtype=torch.complex64).conj())
    for each in kinds:
        plain = each.detach().clone().as_subclass(torch.Tensor).resolve_conj().resolve_neg()
        assert bytes_of(each).tobytes() == plain.contiguous().numpy().tobytes()
        assert checksum(each) == checksum(plain)
        with pytest.raises(Unfit):
            encode((each,))
