"""Makes the order of a PlanSampler from its arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from solar.errors import PlanError
from solar.io.reading.reader import read
from solar.samplers.orders import (
    STRETCH,
    EpochOrder,
    by_blocks,
    by_classes,
    by_groups,
    by_length,
    by_study,
    by_weights,
    in_given_order,
)
from solar.samplers.samplers import is_mixture
from solar.samples.pending import leaves
from solar.samples.source import sample_source

if TYPE_CHECKING:
    from solar.samplers.mixture import Mixture

Column = (
    str | Sequence[Any] | NDArray[Any] | Any | None
)  # a number or name of each sample; or the dataset that has them
PerClass = Literal["equal"] | Mapping[Any, float] | Sequence[float] | Any | None
Amount = int | float | str | None  # of samples: a number, a share of all, or bytes as in "1MiB"
Order = str | Sequence[int] | NDArray[Any] | Callable[[int], Any] | Any | None

BLOCK = 1024  # samples of a block, if nobody says
ONE_OF = ("weights", "labels", "groups", "order", "by_length", "study")
MIXED = "mixed"


def choose_order(dataset: Any, by: Mapping[str, Any], num_samples: int | None, shuffle: bool) -> EpochOrder | None:
    """Returns the order for these arguments; None for torch's own shuffle."""
    kinds = [kind for kind in ONE_OF if by[kind] is not None]
    mixes = isinstance(by["order"], str) and by["order"] == MIXED
    if mixes or by["block"] is not None or by["window"] is not None:
        from solar.samplers import mixed_arguments  # only here: who has another order does not need it

        mixed_arguments.check_mixed(by, kinds, num_samples, mixes)
    if is_mixture(dataset):
        return mixed_order(dataset, kinds, num_samples, shuffle)
    if is_mixture(getattr(dataset, "dataset", None)):
        raise PlanError(
            "a part of a Mixture has not its shares: take the part of each source, and make a Mixture of these"
        )
    if mixes and shuffle and len(dataset):
        groups = by["groups"]
        if groups is not None:
            groups = _classes(column(dataset, groups, "groups"), "groups")[0]
        study = None if by["study"] is None else _study(by["study"])[0]
        return mixed_arguments.mixed_blocks_order(dataset, by["block"], by["window"], groups, study)
    if len(kinds) > 1:
        raise ValueError(f"{' and '.join(kinds)} are {len(kinds)} orders, and a sampler has one: leave out all but one")
    kind = kinds[0] if kinds else ""
    if (by["per_class"] is None) != (kind != "labels"):
        raise ValueError(
            'labels says the class of each sample, and per_class how often each class comes: "equal", or a weight for '
            "each. Give both or neither"
        )
    if (by["run"] is None) != (kind != "by_length"):
        raise ValueError(
            "by_length says how long samples are, and run how many of similar length come in a row: give the samples "
            "of a step, batch_size times the number of ranks. Give both or neither"
        )
    if num_samples is not None and kind not in ("weights", "labels"):
        raise ValueError(f"num_samples={num_samples}: only weights or labels have an epoch as long as you like")
    if num_samples is not None and operator.index(num_samples) < 1:
        raise ValueError(f"num_samples={num_samples}: an epoch has at least one sample")
    if (mixes or kind in ("weights", "labels", "by_length", "study")) and not shuffle:
        kind = 'order="mixed"' if mixes else kind
        raise ValueError(f"shuffle=False, and {kind} draws by chance: leave one of them out")
    samples = len(dataset)
    if kind and not samples:
        raise PlanError(f"{kind}: the dataset has no sample to put in order")
    length = samples if num_samples is None else operator.index(num_samples)
    if kind == "weights":
        return by_weights(as_floats(column(dataset, by[kind], kind), kind), length)
    if kind == "labels":
        classes, labels = _classes(column(dataset, by[kind], kind), kind)
        names = [label_text(label) for label in labels.tolist()]
        return by_classes(classes, names, _shares(by["per_class"], labels.tolist()), length)
    if kind == "groups":
        return by_groups(_classes(column(dataset, by[kind], kind), kind)[0], shuffle=shuffle)
    if kind == "by_length":
        return by_length(sample_lengths(dataset, by[kind]), run_length(by["run"]))
    if kind == "study":
        return by_study(samples, *_study(by[kind]))
    return order_by_kind(by[kind], samples) if kind else None


def _study(value: Any) -> tuple[int, float]:
    """Returns the number of a study, and the share of an epoch that each of its stretches has."""
    study, share = value if isinstance(value, tuple) and len(value) == 2 else (value, STRETCH)
    try:
        number, fits = operator.index(study), 0 < float(share) <= 1
    except (TypeError, ValueError):
        number, fits = 0, False
    if not fits or isinstance(study, bool):
        raise ValueError(
            f"study={value!r}: it is a whole number that all jobs of a study have in common, such as 7; or that and "
            "how large a stretch of an epoch all of them want together, such as (7, 0.05)"
        )
    return number, float(share)


def run_length(run: Any) -> int:
    if isinstance(run, bool) or operator.index(run) < 1:
        raise ValueError(f"run={run!r}: samples of similar length in a row, at least 1")
    return operator.index(run)


def sample_lengths(dataset: Any, value: Any) -> NDArray[Any]:
    """Returns the length of each sample: as given, or, for True, that of the first field of unequal length."""
    if value is not True:
        lengths = column(dataset, value, "by_length")
        if lengths.dtype.kind not in "iu":
            raise PlanError(f"by_length has the type {lengths.dtype}: give whole numbers")
        return lengths
    beneath = sample_source(dataset)
    if isinstance(beneath, str) or not beneath.ragged:
        why = beneath if isinstance(beneath, str) else "its samples are of equal length"
        raise PlanError(f"by_length=True asks the dataset how long its samples are, and {why}: give their lengths")
    which, rows = beneath.locate(np.arange(len(dataset)))
    found = np.empty(len(rows), np.int64)
    for number, one in enumerate(beneath.datasets):
        own = next(own for own in leaves(one.extents) if own is not None and own.lengths is not None)
        if own.varying:
            raise PlanError(
                f"by_length=True: {own.given.name} is of HDF5's variable-length type, whose lengths are not known "
                "before it is read: give them"
            )
        found[which == number] = own.length[rows[which == number]]
    return found


def mixed_order(mixture: Mixture, kinds: list[str], num_samples: int | None, shuffle: bool) -> EpochOrder:
    refused = [*kinds, *(["num_samples"] if num_samples is not None else []), *([] if shuffle else ["shuffle=False"])]
    if refused:
        raise ValueError(
            f"{' and '.join(refused)}: a Mixture has its own order, by its shares, and its `epoch` says how long it "
            "is; give its sources to a torch.utils.data.ConcatDataset to have another"
        )
    return mixture.order()


def order_by_kind(order: Any, samples: int) -> EpochOrder:
    if not isinstance(order, str):
        return in_given_order(order if callable(order) else np.asarray(order), samples)
    name, _, size = order.partition(":")
    if name != "blocks" or (size and not (size.isdecimal() and int(size))):
        raise ValueError(
            f'order={order!r}: it is "mixed", "blocks", "blocks:4096" for blocks of so many samples, an array of '
            "samples, or a function of the epoch that gives one"
        )
    return by_blocks(samples, int(size or BLOCK))


def column(dataset: Any, value: Any, what: str) -> NDArray[Any]:
    """Returns one value for each sample: as given, or read from the files of the dataset."""
    if isinstance(value, str):
        value = _by_sample(dataset, read(_files(dataset, f"{what}={value!r}"), value))
    values = np.asarray(value)
    if values.ndim != 1:
        raise PlanError(f"{what} has the shape {values.shape}: give one value for each sample, one after another")
    if len(values) != len(dataset):
        raise PlanError(
            f"{what} has {len(values):,} values, and the dataset {len(dataset):,} samples: give one for each sample"
        )
    return values


def _by_sample(dataset: Any, values: NDArray[Any]) -> NDArray[Any]:
    """Returns values of rows as those of samples: of a window, the value at its place."""
    extents, kept = getattr(dataset, "extents", None), getattr(dataset, "chosen", None)
    lies = leaves(extents)[0] if extents is not None else None
    if lies is not None and lies.at_rows and len(values) == leaves(dataset.layouts)[0].samples != dataset.numbers:
        values = values[dataset.rows_of(np.arange(dataset.numbers))]
    return values if kept is None else values[kept]


def _files(dataset: Any, purpose: str) -> list[str]:
    layouts = getattr(dataset, "layouts", None)
    while isinstance(layouts, (dict, tuple, list)):
        layouts = next(iter(layouts.values() if isinstance(layouts, dict) else layouts))
    if layouts is None:
        raise PlanError(
            f"{purpose} names a dataset, and only an H5Dataset has files to look for it: give the values themselves, "
            f"one for each sample of this {type(dataset).__name__}"
        )
    return list(layouts.files)


def as_floats(values: NDArray[Any], what: str) -> NDArray[np.float64]:
    if values.dtype.kind not in "biuf":
        raise PlanError(f"{what} has the type {values.dtype}: give numbers")
    return values.astype(np.float64)


def _classes(values: NDArray[Any], what: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Returns the number of each sample's class or group, and the names of these."""
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise PlanError(f"{what}: sample {int(np.isnan(values).argmax()):,} has NaN: give each sample a value")
    try:
        labels, classes = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise PlanError(
            f"{what}: values of type {values.dtype} cannot be compared ({error}): give numbers or text"
        ) from None
    return classes.astype(np.int64, copy=False), labels


def label_text(label: Any) -> str:
    return label.decode(errors="replace") if isinstance(label, bytes) else str(label)


def _shares(per_class: Any, labels: list[Any]) -> NDArray[np.float64] | None:
    """Returns how often each class comes; None: all equally often."""
    if isinstance(per_class, str):
        if per_class != "equal":
            raise ValueError(f'per_class={per_class!r}: it is "equal", or a weight for each class')
        return None
    if not isinstance(per_class, Mapping):
        shares = as_floats(np.asarray(per_class), "per_class")
        if shares.shape != (len(labels),):
            raise PlanError(
                f"per_class has the shape {shares.shape}, and labels has {len(labels):,} classes: give one weight for "
                "each, in their order, or a dict"
            )
        return check_shares(shares, labels)
    value = {label_text(label): share for label, share in per_class.items()}
    names = [label_text(label) for label in labels]
    if empty := [label for label in value if label not in set(names)]:
        raise PlanError(f"per_class: class {empty[0]} has no sample, so it cannot come: leave it out")
    if missing := [name for name in names if name not in value]:
        raise PlanError(f"per_class says nothing of class {missing[0]}: give it a weight, 0 if it is never to come")
    return check_shares(as_floats(np.array([value[name] for name in names]), "per_class"), labels)


def check_shares(shares: NDArray[np.float64], labels: list[Any]) -> NDArray[np.float64]:
    wrong = np.flatnonzero(~(np.isfinite(shares) & (shares >= 0)))
    if len(wrong):
        raise PlanError(
            f"per_class: the weight of class {label_text(labels[wrong[0]])} is {shares[wrong[0]]}; give 0 or more"
        )
    return shares
