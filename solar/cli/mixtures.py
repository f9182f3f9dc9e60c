"""Mixtures as people ask for them on a command line: --mixture real.h5=.7 --mixture made.h5=.3."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import numpy as np

from solar.cli import quantities
from solar.errors import PlanError
from solar.orders.epoch_order import EpochOrder
from solar.orders.sources import Epoch, by_sources, epoch_length, whole_shares
from solar.values import Layout


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
    """A file and its share."""
    path, _, share = text.rpartition("=")
    try:
        return (path, float(share)) if path else _refuse(text)
    except ValueError:
        return _refuse(text)


def _refuse(text: str) -> tuple[str, float]:
    raise argparse.ArgumentTypeError(f"{text!r} is no source: give FILE=SHARE, such as real.h5=0.7")


def epoch(text: str) -> Epoch:
    """How long an epoch is, as Mixture takes it."""
    return text if text in ("first", "all") else quantities.count(text)  # type: ignore[return-value]


def order_of(arguments: argparse.Namespace, sources: Mapping[str, Mapping[str, Layout]]) -> EpochOrder:
    """What comes when, of samples that are numbered source after source; PlanError where sources are not alike."""
    if len(sources) < len(arguments.mixture):
        raise PlanError("--mixture: the same FILE is given twice; add its shares up")
    kinds = {
        path: {name: (str(one.dtype), one.sample_shape) for name, one in found.items()}
        for path, found in sources.items()
    }
    first, *others = kinds
    if other := next((path for path in others if kinds[path] != kinds[first]), None):
        raise PlanError(
            f"samples of {first} and of {other} cannot stand in one batch: {_said(kinds[first])}; and "
            f"{_said(kinds[other])}. Name the DATASETs that both have"
        )
    sizes = np.array([next(iter(found.values())).samples for found in sources.values()], np.int64)
    whole = whole_shares(np.array([share for _, share in arguments.mixture], np.float64), [*sources])
    if not sizes.all():
        raise PlanError(f"{[*sources][int(sizes.argmin())]} has no sample: leave it out")
    length = epoch_length(arguments.mixture_epoch, sizes, whole)
    return by_sources("mixture", int(sizes.sum()), length, sizes, [*sources], whole)


def _said(fields: Mapping[str, tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} is {dtype} {shape}" for name, (dtype, shape) in fields.items())
