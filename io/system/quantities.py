"""Formats sizes, rates, counts and times for people, and parses sizes as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from solar.errors import PlanError

# Formats numbers for people: sizes, rates, counts, times. All messages, reports and commands use it.


def size(nbytes: float) -> str:
    """Returns bytes with a unit: 512 B, 64 KiB, 1.5 GiB.

    >>> size(3 << 29)
    '1.5 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if nbytes < (1024 if unit == "B" else 1023.5) or unit == "TiB":  # 1023.9 KiB would be shown as 1024 KiB
            break
        nbytes /= 1024
    text = f"{nbytes:.1f}".removesuffix(".0") if nbytes < 99.95 and unit != "B" else f"{nbytes:,.0f}"
    return f"{text} {unit}"


def enough(nbytes: int) -> str:
    """Returns bytes with a unit, rounded up: for advice that is to hold when it is followed.

    >>> enough((3 << 29) + 1)
    '1.6 GiB'
    """
    for power in range(5):
        steps = 1 if power == 0 or nbytes >= 100 << 10 * power else 10  # of each unit
        rounded = -(-nbytes * steps // (1 << 10 * power))
        if rounded < 1024 * steps or power == 4:
            break
    return size(rounded * (1 << 10 * power) / steps)


def rate(nbytes_a_second: float) -> str:
    """Returns bytes a second, as storage is sold: 250 MB/s, 1.25 GB/s.

    >>> rate(1.25e9)
    '1.25 GB/s'
    """
    for unit in ("B/s", "kB/s", "MB/s", "GB/s"):
        if nbytes_a_second < 999.5 or unit == "GB/s":
            break
        nbytes_a_second /= 1000
    return f"{rounded(nbytes_a_second) if unit != 'B/s' else format(nbytes_a_second, '.0f')} {unit}"


def count(number: int, noun: str, nouns: str = "") -> str:
    """A number and its noun: 1 chunk, 12,000 chunks, 2 batches.

    >>> count(2, "batch", "batches")
    '2 batches'
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def duration(seconds: float) -> str:
    """Returns a time as text: 2 ms, 1.5 s, 7 min 3 s, 2 h 10 min."""
    for longer, shorter, length in (("h", "min", 60), ("min", "s", 1)):
        if seconds >= 60 * length:
            whole, rest = divmod(round(seconds / length), 60)
            return f"{whole:,} {longer} {rest} {shorter}"
    for unit, least in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= least:
            return f"{seconds / least:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def rounded(number: float) -> str:
    """Returns a number with three digits, never as a power of ten: 0.125, 7.32, 1,234."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def short(number: float) -> str:
    """A number in few letters: 950, 12.5k, 3M, 0.5.

    >>> short(12_500)
    '12.5k'
    """
    for letter, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.4g}{letter}"
    return f"{number:.4g}"


# Sizes as people write them: 8GiB, 64k, 100MB, 25%.


_NUMBER = re.compile(r"\s*([0-9][0-9_,]*(?:\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?\s*([a-zµμ/%]*)\s*", re.IGNORECASE)
_BINARY = {letter: 1024.0**power for power, letter in enumerate("kmgtp", 1)}
DECIMAL = {letter: 1000.0**power for power, letter in enumerate("kmgtp", 1)}
# As dd has it: a letter alone, and with iB, is 1024; with B it is 1000.
SIZES = {"": 1.0, "b": 1.0} | {
    letter + tail: (DECIMAL if tail == "b" else _BINARY)[letter] for letter in _BINARY for tail in ("", "ib", "b", "i")
}


def parse_size(text: str) -> int:
    """Returns bytes: 8GiB, 64k (of 1024), 100MB (of 1000), 4096.

    >>> parse_size("1.5k")
    1536
    """
    return whole_number(text, value(text, SIZES, "a size such as 8GiB, 64k or 100MB"))


def size_of(text: str, of: int) -> int:
    """Returns bytes as in `parse_size`, or a share of `of`: 25%.

    >>> size_of("25%", 4000)
    1000
    """
    wanted = "a size such as 8GiB, 64k or 100MB, or a share such as 25%"
    if not text.strip().endswith("%"):
        return whole_number(text, value(text, SIZES, wanted))
    share = value(text, {"%": 0.01}, wanted)
    if not 0 <= share <= 1:
        raise PlanError(f"{text!r} is more than all of it")
    return int(share * of)


def value(text: str, units: Mapping[str, float], wanted: str) -> float:
    """Returns the number, times its unit. Raises PlanError if it is none of `wanted`."""
    found = _NUMBER.fullmatch(text)
    if found is None or found[3].lower() not in units:
        raise PlanError(f"{text!r} is not {wanted}")
    number = float(found[1].replace("_", "").replace(",", "") + (found[2] or "")) * units[found[3].lower()]
    if not math.isfinite(number) or number >= 2**63:
        raise PlanError(f"{text!r} is too large")
    return number


def whole_number(text: str, number: float) -> int:
    """Returns the number of things that a text means."""
    if number != int(number) and number < 1024:
        raise PlanError(f"{text!r} is not a whole number")
    return int(number)
