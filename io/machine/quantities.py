"""Sizes as people write them: 8GiB, 64k, 100MB, 25%."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from solar.errors import PlanError

_NUMBER = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?\s*([a-zµμ/%]*)\s*", re.IGNORECASE)
_BINARY = {letter: 1024.0**power for power, letter in enumerate("kmgtp", 1)}
DECIMAL = {letter: 1000.0**power for power, letter in enumerate("kmgtp", 1)}
# As dd has it: a letter alone, and with iB, is 1024; with B it is 1000.
SIZES = {"": 1.0, "b": 1.0} | {
    letter + tail: (DECIMAL if tail == "b" else _BINARY)[letter] for letter in _BINARY for tail in ("", "ib", "b", "i")
}


def size(text: str) -> int:
    """Bytes: 8GiB, 64k (of 1024), 100MB (of 1000), 4096.

    >>> size("1.5k")
    1536
    """
    return whole(text, value(text, SIZES, "a size such as 8GiB, 64k or 100MB"))


def size_of(text: str, of: int) -> int:
    """Bytes as in `size`, or a share of `of`: 25%.

    >>> size_of("25%", 4000)
    1000
    """
    wanted = "a size such as 8GiB, 64k or 100MB, or a share such as 25%"
    if not text.strip().endswith("%"):
        return whole(text, value(text, SIZES, wanted))
    share = value(text, {"%": 0.01}, wanted)
    if not 0 <= share <= 1:
        raise PlanError(f"{text!r} is more than all of it")
    return int(share * of)


def value(text: str, units: Mapping[str, float], wanted: str) -> float:
    """The number, times its unit. PlanError where it is none of `wanted`."""
    found = _NUMBER.fullmatch(text)
    if found is None or found[3].lower() not in units:
        raise PlanError(f"{text!r} is not {wanted}")
    number = float(found[1].replace("_", "").replace(",", "") + (found[2] or "")) * units[found[3].lower()]
    if not math.isfinite(number) or number >= 2**63:
        raise PlanError(f"{text!r} is too large")
    return number


def whole(text: str, number: float) -> int:
    """The number of things that a text means."""
    if number != int(number) and number < 1024:
        raise PlanError(f"{text!r} is not a whole number")
    return int(number)
