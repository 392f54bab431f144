"""The Open Inference Protocol (KServe's second version, which Triton speaks): JSON, with arrays as JSON or as bytes.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol, with Triton's binary data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LENGTH = "inference-header-content-length"  # of the JSON, where arrays follow it as bytes
_NAMES = {"bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64"}
_NAMES |= {f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_MOST_DIGITS = 18  # of a length
_LARGEST, _MOST_SIZES = 2**63 - 1, 32  # of a shape, which a program's arrays have
_PIECE = 8192  # numbers that are written at a time: other threads wait meanwhile
_TYPES = {name: np.dtype(dtype) for dtype, name in _NAMES.items()}
_IN_LISTS = {int, float, bool, list}


class BadRequest(Exception):
    """The message is one sentence for whoever sent it."""


@dataclass(frozen=True)
class Asked:
    """`outputs`: the names of those that are wanted, and whether as bytes."""

    id: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, bool]


def datatype(dtype: str) -> str:
    """`FP32` of `float32`."""
    return _NAMES[dtype]


def asked(body: bytes, json_length: str | None, known: Sequence[str]) -> Asked:
    """
    Args:
        json_length: what the header says, where there is one.
        known: names of the model's outputs.

    Raises:
        BadRequest
    """
    length = len(body)
    if json_length is not None:
        if not json_length.isdecimal() or len(json_length) > _MOST_DIGITS or int(json_length) > length:
            raise BadRequest(f"{LENGTH} is {json_length[:_MOST_DIGITS]}, and the body has {length:,} bytes")
        length = int(json_length)
    try:
        told = json.loads(body[:length])
        given = told["inputs"]
        names = [each["name"] for each in given]
        if not all(isinstance(name, str) for name in names):
            raise TypeError
        parameters = told.get("parameters") or {}
        everything = bool(parameters.get("binary_data_output", False))
        wanted = told.get("outputs") or [{"name": name} for name in known]
        outputs = {each["name"]: bool((each.get("parameters") or {}).get("binary_data", everything)) for each in wanted}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadRequest("the body is no JSON with inputs, each with name, shape, datatype and data") from None
    if len(set(names)) < len(names):
        raise BadRequest("an input is given twice")
    if unknown := [name for name in outputs if name not in known]:
        raise BadRequest(f"there is no output {unknown[0]}; there are {', '.join(known)}")
    inputs, place = {}, length
    for each in given:
        inputs[each["name"]], place = _array(each, body, place)
    if place != len(body):
        raise BadRequest(f"{len(body) - place:,} bytes follow that belong to no input")
    id = told.get("id")
    return Asked("" if id is None else str(id), inputs, outputs)


def made_body(inputs: Mapping[str, Any]) -> bytes:
    """Of a request, in JSON alone."""
    told = [
        {"name": name, "datatype": datatype(str(each.dtype)), "shape": list(each.shape), "data": each.ravel().tolist()}
        for name, each in inputs.items()
    ]
    return json.dumps({"inputs": told}).encode()


def answered(
    model: str, id: str, outputs: Mapping[str, Any], binary: Mapping[str, bool]
) -> tuple[bytes, dict[str, str]]:
    """The body of an answer, and its headers. `binary`: which outputs, and whether as bytes.

    Raises:
        BadRequest: JSON has no form for a number in it.
    """
    told: list[bytes] = []
    tail: list[bytes] = []
    for name, as_bytes in binary.items():
        array = np.asarray(outputs[name])
        each: dict[str, Any] = {"name": name, "datatype": datatype(str(array.dtype)), "shape": list(array.shape)}
        if as_bytes:
            tail.append(np.ascontiguousarray(array).tobytes())
            each["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise BadRequest(f"{name} holds NaN or infinity, which JSON has no form for: ask for it as binary data")
            each["data"] = array.ravel()
        told.append(_written(each))
    told_of_all = json.dumps({"model_name": model, "model_version": "1", "id": id}).encode()
    head = b"".join([told_of_all[:-1], b', "outputs": [', b", ".join(told), b"]}"])
    if not tail:
        return head, {"content-type": "application/json"}
    return b"".join([head, *tail]), {"content-type": "application/octet-stream", LENGTH: str(len(head))}


def _written(output: dict[str, Any]) -> bytes:
    """In JSON, piece by piece: one call of `json` for a million numbers takes half a second, in which no other thread
    runs, and so nobody else is answered."""
    data = output.pop("data", None)
    head = json.dumps(output).encode()
    if data is None:
        return head
    pieces = [json.dumps(data[start : start + _PIECE].tolist())[1:-1] for start in range(0, len(data), _PIECE)]
    return b"".join([head[:-1], b', "data": [', ", ".join(pieces).encode(), b"]}"])


def _array(each: Mapping[str, Any], body: bytes, place: int) -> tuple[Any, int]:
    """One input, and the place in the body where the next one's bytes begin."""
    name, kind, shape = str(each["name"])[:100], each.get("datatype"), each.get("shape")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise BadRequest(f"{name} is of the datatype {str(kind)[:20]}; known are {', '.join(_TYPES)}")
    if (
        not isinstance(shape, list)
        or len(shape) > _MOST_SIZES
        or not all(type(size) is int and 0 <= size <= _LARGEST for size in shape)
    ):
        raise BadRequest(f"{name} has no shape that is a list of sizes")
    dtype, count = _TYPES[kind], math.prod(shape)
    if count == 0 and math.prod(size or 1 for size in shape) * dtype.itemsize > _LARGEST:
        raise BadRequest(f"{name} has a shape that no array has")
    parameters = each.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is not None:
        if type(size) is not int or size != count * dtype.itemsize or place + size > len(body):
            raise BadRequest(f"{name} is to have {count * dtype.itemsize:,} bytes, and has another number of them")
        return np.frombuffer(body, dtype, count, place).reshape(shape).copy(), place + size
    return _of_list(name, each.get("data"), dtype, shape, count), place


def _of_list(name: str, data: Any, dtype: np.dtype[Any], shape: Sequence[int], count: int) -> Any:
    numbers = _numbers_in(data)
    if numbers is None:
        raise BadRequest(f"{name} is of the datatype {_NAMES[str(dtype)]}, and its data are not")
    if numbers != count:
        raise BadRequest(f"{name} has {numbers:,} numbers, and its shape {list(shape)} takes {count:,}")
    try:
        found = np.array(data)
    except ValueError:
        raise BadRequest(f"{name} is no even list of numbers") from None
    allowed = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}[dtype.kind]
    if found.dtype.kind not in allowed and count:
        raise BadRequest(f"{name} is of the datatype {_NAMES[str(dtype)]}, and its data are not")
    with np.errstate(over="ignore", invalid="ignore"):
        array = found.astype(dtype).reshape(shape)
    if dtype.kind in "iu" and not np.array_equal(array.ravel(), found.ravel()):
        raise BadRequest(f"{name} holds a number that {_NAMES[str(dtype)]} does not")
    return array


def _numbers_in(data: Any) -> int | None:
    """How many a list of lists holds; None where anything else is in it. NumPy would make all of it as wide as the
    longest text, before it tells."""
    count, waiting = 0, [[data]]
    while waiting:
        within = waiting.pop()
        kinds = set(map(type, within))
        if not kinds <= _IN_LISTS:
            return None
        inner = [each for each in within if type(each) is list] if list in kinds else []
        count += len(within) - len(inner)
        waiting += inner
    return count
