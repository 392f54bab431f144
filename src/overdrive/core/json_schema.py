"""JSON schemas of frozen dataclasses, as `core.json_data.to_json` writes them, and of `TypedDict`s: from type hints."""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # null: not finite
    Any: {},
}


def schema_of(kind: type, title: str) -> dict[str, Any]:
    """The schema of what `to_json` makes of a `kind`: all its fields are there. A later version may have more."""
    parts: dict[str, Any] = {}
    made = _of_fields(kind, parts)
    return {"$schema": DIALECT, "title": title, **made, **({"$defs": parts} if parts else {})}


def _of_fields(kind: type, parts: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)] if is_dataclass(kind) else list(hints)
    described = (kind.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")
    return {
        **({"description": described} if described and not described.startswith(f"{kind.__name__}(") else {}),
        "type": "object",
        "properties": {name: _of(hints[name], parts) for name in names},
        "required": names,
    }


def _of(hint: Any, parts: dict[str, Any]) -> dict[str, Any]:
    if hint in _PLAIN:
        return dict(_PLAIN[hint])
    if isinstance(hint, type) and (is_dataclass(hint) or is_typeddict(hint)):
        if hint.__name__ not in parts:
            parts[hint.__name__] = {}  # taken, should it hold itself
            parts[hint.__name__] = _of_fields(hint, parts)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [each.value for each in hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        options = [_of(each, parts) for each in arguments if each is not types.NoneType]
        if types.NoneType in arguments:
            options.append({"type": "null"})
        return {"anyOf": options}
    if origin in (tuple, list, Sequence):
        if len(arguments) == 2 and arguments[1] is not Ellipsis:
            each = [_of(argument, parts) for argument in arguments]
            return {"type": "array", "prefixItems": each, "minItems": len(each), "maxItems": len(each)}
        return {"type": "array", "items": _of(arguments[0], parts)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of(arguments[1], parts)}
    raise TypeError(f"no schema is known of {hint}")
