"""Sizes, rates, times and counts as people write them (8GiB, 64k, 1GB/s, 2ms, 10M)."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from solar.errors import PlanError
from solar.io.machine import quantities
from solar.io.machine.quantities import SIZES

TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0}
COUNT_UNITS = {"": 1.0} | quantities.DECIMAL
COUNT_LIMIT = 2**31 - 1
MOST_RANKS = 1_000_000


def size(text: str) -> int:
    """Bytes: 8GiB, 64k (of 1024), 100MB (of 1000), 4096."""
    return _whole(text, _value(text, SIZES, "a size such as 8GiB, 64k or 100MB"))


def rate(text: str) -> float:
    """Bytes a second: 1GB/s, 500MiB/s."""
    if re.search(r"[0-9.\s][kKmMgGtTpP]?(b|bit)(/s|ps)\s*$", text):
        raise argparse.ArgumentTypeError(f"{text!r} looks like bits: give bytes a second, such as 1GB/s")
    value = _value(text, {f"{unit}/s": factor for unit, factor in SIZES.items()} | SIZES, "a rate such as 1GB/s")
    return _above_zero(text, value)


def seconds(text: str) -> float:
    """A time: 2ms, 150us, 1s; without a unit only 0."""
    units = TIME_UNITS | ({"": 1.0} if text.strip("0. ") == "" else {})
    return _value(text, units, "a time with its unit, such as 2ms or 150us")


def span(text: str, most: float = 3600.0) -> float:
    """Seconds to measure for, with their unit or without."""
    found = seconds(text if text.strip()[-1:].isalpha() else text + "s")
    if not 0 < found <= most:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and {most:g} seconds at most")
    return found


def count(text: str) -> int:
    """A number of things, at least 1: 8, 200_000, 10M (of 1000)."""
    return _counted(text, COUNT_LIMIT)


def ranks(text: str) -> int:
    """A number of processes: as `count`, but no more than there have been anywhere."""
    return _counted(text, MOST_RANKS)


def seed(text: str) -> int:
    """A seed: a whole number from 0, that leaves room for the epochs that are added to it."""
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: give a whole number of at most 18 digits")
    return int(text)


def per_second(text: str) -> float:
    """Things a second: 500, 20k, 1.5M."""
    units = COUNT_UNITS | {f"{unit}/s": factor for unit, factor in COUNT_UNITS.items()}
    return _above_zero(text, _value(text, units, "a number a second, such as 500 or 20k"))


def _counted(text: str, most: int) -> int:
    number = _whole(text, _value(text, COUNT_UNITS, "a whole number such as 64 or 10M"))
    if number > most:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: at most {most:,}")
    return int(_above_zero(text, number))


def _value(text: str, units: Mapping[str, float], wanted: str) -> float:
    try:
        return quantities.value(text, units, wanted)
    except PlanError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _whole(text: str, value: float) -> int:
    try:
        return quantities.whole(text, value)
    except PlanError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _above_zero(text: str, value: float) -> float:
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0")
    return value
