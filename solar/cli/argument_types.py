"""Arguments as people write them: sizes, rates, times and counts (8GiB, 1GB/s, 2ms, 10M), and mixtures of files."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

import numpy as np

from solar.errors import PlanError
from solar.io.system import quantities
from solar.io.system.quantities import SIZES
from solar.samplers.orders import Epoch, EpochOrder, by_sources, epoch_length, whole_shares
from solar.values import Layout

# Sizes, rates, times and counts as people write them (8GiB, 64k, 1GB/s, 2ms, 10M).


TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0}
COUNT_UNITS = {"": 1.0} | quantities.DECIMAL
COUNT_LIMIT = 2**31 - 1
MOST_RANKS = 1_000_000


def size_argument(text: str) -> int:
    """Returns bytes: 8GiB, 64k (of 1024), 100MB (of 1000), 4096."""
    return parse_whole(text, _value(text, SIZES, "a size such as 8GiB, 64k or 100MB"))


def rate_argument(text: str) -> float:
    """Returns bytes per second: 1GB/s, 500MiB/s."""
    if re.search(r"[0-9.\s][kKmMgGtTpP]?(b|bit)(/s|ps)\s*$", text):
        raise argparse.ArgumentTypeError(f"{text!r} looks like bits: give bytes a second, such as 1GB/s")
    value = _value(text, {f"{unit}/s": factor for unit, factor in SIZES.items()} | SIZES, "a rate such as 1GB/s")
    return check_above_zero(text, value)


def seconds_argument(text: str) -> float:
    """Returns a time in seconds: 2ms, 150us, 1s; without a unit only 0."""
    units = TIME_UNITS | ({"": 1.0} if text.strip("0. ") == "" else {})
    return _value(text, units, "a time with its unit, such as 2ms or 150us")


def span_argument(text: str, most: float = 3600.0) -> float:
    """Returns the seconds to measure for, written with a unit or without."""
    found = seconds_argument(text if text.strip()[-1:].isalpha() else text + "s")
    if not 0 < found <= most:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0 and {most:g} seconds at most")
    return found


def count_argument(text: str) -> int:
    """Returns a count of at least 1: 8, 200_000, 10M (of 1000)."""
    return parse_count(text, COUNT_LIMIT)


def ranks(text: str) -> int:
    """Returns a number of processes, as `count_argument` does, but no more than anybody has ever run."""
    return parse_count(text, MOST_RANKS)


def seed(text: str) -> int:
    """Returns a seed: a whole number from 0 that leaves room for the epochs that are added to it."""
    if not re.fullmatch(r"[0-9]{1,18}", text.strip()):
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: give a whole number of at most 18 digits")
    return int(text)


def per_second(text: str) -> float:
    """Returns a number per second: 500, 20k, 1.5M."""
    units = COUNT_UNITS | {f"{unit}/s": factor for unit, factor in COUNT_UNITS.items()}
    return check_above_zero(text, _value(text, units, "a number a second, such as 500 or 20k"))


def parse_count(text: str, most: int) -> int:
    number = parse_whole(text, _value(text, COUNT_UNITS, "a whole number such as 64 or 10M"))
    if number > most:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: at most {most:,}")
    return int(check_above_zero(text, number))


def _value(text: str, units: Mapping[str, float], wanted: str) -> float:
    try:
        return quantities.value(text, units, wanted)
    except PlanError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_whole(text: str, value: float) -> int:
    try:
        return quantities.whole_number(text, value)
    except PlanError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def check_above_zero(text: str, value: float) -> float:
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0")
    return value


# Mixtures as people ask for them on a command line: --mixture real.h5=.7 --mixture made.h5=.3.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("a mixture, as solar.Mixture has it; DATASETs are of each FILE").add_argument
    add(
        "--mixture", metavar="FILE=SHARE", action="append", default=[], type=source,
        help="one of several sources, and its share of the samples",
    )  # fmt: skip
    add(
        "--mixture-epoch",
        metavar="N",
        type=epoch,
        default="first",
        help="samples of an epoch, or first, or all (first)",
    )


def source(text: str) -> tuple[str, float]:
    """Returns a file and its share."""
    path, _, share = text.rpartition("=")
    try:
        return (path, float(share)) if path else refuse_source(text)
    except ValueError:
        return refuse_source(text)


def refuse_source(text: str) -> tuple[str, float]:
    raise argparse.ArgumentTypeError(f"{text!r} is no source: give FILE=SHARE, such as real.h5=0.7")


def epoch(text: str) -> Epoch:
    """Returns the length of an epoch, as Mixture takes it."""
    return text if text in ("first", "all") else count_argument(text)  # type: ignore[return-value]


def mixture_order(arguments: argparse.Namespace, sources: Mapping[str, Mapping[str, Layout]]) -> EpochOrder:
    """Returns the order of samples numbered source after source. Raises PlanError if sources differ in kind."""
    if len(sources) < len(arguments.mixture):
        raise PlanError("--mixture: the same FILE is given twice; add its shares up")
    kinds = {
        path: {name: (str(one.dtype), one.sample_shape) for name, one in found.items()}
        for path, found in sources.items()
    }
    first, *others = kinds
    if other := next((path for path in others if kinds[path] != kinds[first]), None):
        raise PlanError(
            f"samples of {first} and of {other} cannot stand in one batch: {describe_fields(kinds[first])}; and "
            f"{describe_fields(kinds[other])}. Name the DATASETs that both have"
        )
    sizes = np.array([next(iter(found.values())).samples for found in sources.values()], np.int64)
    whole = whole_shares(np.array([share for _, share in arguments.mixture], np.float64), [*sources])
    if not sizes.all():
        raise PlanError(f"{[*sources][int(sizes.argmin())]} has no sample: leave it out")
    length = epoch_length(arguments.mixture_epoch, sizes, whole)
    return by_sources("mixture", int(sizes.sum()), length, sizes, [*sources], whole)


def describe_fields(fields: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} is {dtype} {shape}" for name, (dtype, shape) in fields.items())
