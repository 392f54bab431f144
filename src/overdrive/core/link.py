"""A link between ranks as people state it: its rate, and its latency."""

from __future__ import annotations

import re
from dataclasses import dataclass

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(bit|b|B)(?:/s|ps)?", re.ASCII)
_LATENCY = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)", re.ASCII)
_POWERS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


class LinkError(ValueError):
    """What was given is no link; the message is one sentence."""


@dataclass(frozen=True)
class Link:
    """`latency_seconds`: of one message, from one rank to the next."""

    bytes_per_second: float
    latency_seconds: float
    name: str

    @classmethod
    def parse(cls, text: str) -> Link:
        """`10Gbit,50us`, `1.25GB/s,5us`.

        Raises:
            LinkError: it is something else, or one of the two is missing.
        """
        first, comma, second = (part.strip() for part in text.partition(","))
        rate, latency = _RATE.fullmatch(first), _LATENCY.fullmatch(second)
        if rate is None or not float(rate[1]):
            raise LinkError(f"{text!r} is not a link: {first!r} is no rate; write for example 10Gbit,50us")
        if not comma:
            raise LinkError(f"{text!r} names no latency, which small messages hang on; write for example {first},50us")
        if latency is None:
            raise LinkError(f"{text!r} is not a link: {second!r} is no latency; write for example {first},50us")
        per_second = float(rate[1]) * _POWERS[rate[2]] / (1 if rate[3] == "B" else 8)
        return cls(per_second, float(latency[1]) * _SECONDS[latency[2]], f"{first},{second}")
