"""Links as people state them."""

from __future__ import annotations

import pytest

from overdrive.core.link import Link, LinkError


@pytest.mark.parametrize(
    ("text", "rate", "latency"),
    [
        ("10Gbit,50us", 1.25e9, 50e-6),
        ("1.25GB/s, 5 µs", 1.25e9, 5e-6),
        ("100 Mbit/s,1ms", 12.5e6, 1e-3),
        ("400Gbps,800ns", 50e9, 8e-7),
        ("1Gb,0us", 125e6, 0.0),
    ],
)
def test_rate_and_latency(text: str, rate: float, latency: float) -> None:
    found = Link.parse(text)
    assert (found.bytes_per_second, found.latency_seconds) == (pytest.approx(rate), pytest.approx(latency))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "'fast' is not a link: 'fast' is no rate; write for example 10Gbit,50us"),
        ("0Gbit,50us", "'0Gbit' is no rate"),
        ("-1Gbit,50us", "'-1Gbit' is no rate"),
        ("10Gbit", "'10Gbit' names no latency, which small messages hang on; write for example 10Gbit,50us"),
        ("10Gbit,", "'' is no latency"),
        ("10Gbit,50", "'50' is no latency; write for example 10Gbit,50us"),
        ("10Gbit,50us,3", "'50us,3' is no latency"),
        ("10Gbit,-5us", "'-5us' is no latency"),
        ("", "'' is no rate"),
    ],
)
def test_what_is_no_link_is_said_with_an_example(text: str, said: str) -> None:
    with pytest.raises(LinkError) as caught:
        Link.parse(text)
    assert said in str(caught.value)
