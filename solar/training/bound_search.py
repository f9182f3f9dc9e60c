"""solar tune: compares how a bound changes gradients with their random noise.

The idea is COMET's (arXiv 2111.09562), which allows errors in saved activations as long as the gradient's error stays
small; here the inputs have the errors. All comparisons are paired: the same batches, weights and draws of dropout.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from solar.errors import LayoutError, PlanError
from solar.io.codec.codec import Codec, rounded_down
from solar.io.codec.selection import Part
from solar.io.hdf5.layouts import inspect
from solar.io.reading.reader import Rows
from solar.loader.collate import Collation
from solar.training.as_stored import AsStored, Effort
from solar.training.gradient_noise import (
    FEWEST,
    Batch,
    Change,
    Loss,
    Noise,
    Taker,
    change_of,
    loss_value,
    noise_of,
    parameters_of,
)

ProgressCallback = Callable[[int, int], object]  # takes how many are done, and of how many
LARGEST_COUNT = 1 << 53  # of events: what is above is a mark, or no count

LOSSES: Mapping[str, Callable[..., torch.Tensor]] = {
    "mse": functional.mse_loss,
    "mae": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "huber": functional.huber_loss,
    "cross_entropy": functional.cross_entropy,
    "bce": functional.binary_cross_entropy_with_logits,
    "poisson_nll": functional.poisson_nll_loss,
}


@dataclass(frozen=True)
class Training:
    """The training task: a loss of a model and a batch, and the fields of the batch."""

    path: str
    fields: Mapping[str, str]  # the batch's names, and the datasets behind them
    model: nn.Module
    loss: Loss
    batch: int
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class State:
    """A model as it is at one point of its training."""

    name: str
    model: nn.Module


@dataclass
class Rung:
    """The effect of one bound."""

    asked: Codec
    bound: float  # as a number, in the unit in which it was asked for
    effort: Effort = field(default_factory=Effort)
    changes: list[Change] = field(default_factory=list)  # in each state


@dataclass(frozen=True)
class Tuned:
    """The measurements on one field."""

    part: Part
    samples: int
    batches: int
    states: list[str]
    noises: list[Noise]  # in each state
    rungs: list[Rung]  # the first is lossless
    whole: bool  # whether all values seen are whole numbers
    sigma: float | None  # of Poisson, for counts: the root of their mean
    anew: list[Change] | None  # what counts drawn anew by that law do, in each state
    labels: str = ""  # why its values are rather compared for equality than measured

    def shares(self, changes: Sequence[Change]) -> list[float]:
        """Returns the changes in each state, as shares of the noise there."""
        return [noise_share(change.size, noise.size) for change, noise in zip(changes, self.noises, strict=True)]

    def shared(self, rung: Rung) -> list[float]:
        """Returns the part of the changes that all batches share, in each state, as shares of the noise there."""
        return [noise_share(change.shared, noise.size) for change, noise in zip(rung.changes, self.noises, strict=True)]

    def chosen(self, fraction: float) -> Rung:
        """Returns the last rung up to which no state's gradient changes by more than this fraction of its noise."""
        found = self.rungs[0]
        for rung in self.rungs[1:]:
            if not max(self.shares(rung.changes)) <= fraction:
                break
            found = rung
        return found

    @property
    def unit(self) -> float:
        """Returns the distance of values whose stored numbers are one apart, in the unit of the bounds."""
        return float(self.part.unit)

    @property
    def ignored(self) -> bool:
        """Whether no bound changed any gradient although values changed."""
        return not any(change.size for rung in self.rungs for change in rung.changes) and any(
            rung.effort.off for rung in self.rungs
        )


def noise_share(size: float, noise: float) -> float:
    return size / noise if noise > 0 else math.inf if size > 0 else 0.0


# --- the model and its loss ----


def made(build: Any, named: str, weights: str | None, seed: int) -> nn.Module:
    """Returns the model that `build()` makes under a seed, with weights from a file if there are any."""
    if isinstance(build, nn.Module):
        model: Any = build
    elif callable(build):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build()
    else:
        raise PlanError(
            f"--model {named} is {type(build).__name__}: name a function without arguments that makes a model"
        )
    if not isinstance(model, nn.Module):
        raise PlanError(f"--model {named} gives {type(model).__name__}, and must give a torch.nn.Module")
    if weights is not None:
        load_state(model, weights)
    return model


def load_state(model: nn.Module, path: str) -> None:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise PlanError(f"--weights {path}: {reason}; save model.state_dict() with torch.save") from error
    try:
        model.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        hint = f"; it has {', '.join(map(str, list(state)[:5]))}" if isinstance(state, dict) else ""
        raise PlanError(f"--weights {path} is no state_dict of this model: {reason}{hint}") from error


def loss_of(name: str, inputs: Sequence[str], targets: Sequence[str]) -> Loss:
    """Returns the loss of LOSSES between the model's output for the inputs, in its own type, and the one target."""
    if len(targets) != 1:
        raise PlanError(f"--loss {name} compares with one target, not with {len(targets)}: give --target NAME")
    (target,), kind = targets, LOSSES[name]

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        dtype = next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)
        found = model(*(batch[key].to(dtype) for key in inputs))
        if not isinstance(found, torch.Tensor):
            raise PlanError(f"the model gives {type(found).__name__}, no tensor: --loss {name} needs one; write a loss")
        wanted = batch[target]
        if name == "cross_entropy" and not wanted.is_floating_point():
            return kind(found, wanted.long())
        if found.shape != wanted.shape:
            raise PlanError(
                f"the model gives {tuple(found.shape)}, and {target} is {tuple(wanted.shape)}: write a loss"
            )
        return kind(found, wanted.to(found.dtype))

    return loss


# --- measuring ----


def training_states(
    task: Training,
    steps: int,
    rate: float,
    named: str = "at the start",
    progress: ProgressCallback = lambda done, of: None,
) -> list[State]:
    """Returns the model as it is, and as it is after this many steps of Adam on batches of the file."""
    states = [State(named, task.model)]
    if steps:
        model = copy.deepcopy(task.model).to(task.device)
        optimiser = torch.optim.Adam(parameters_of(model), rate)
        read, rng = _Fields(task), np.random.default_rng([task.seed, 1])
        model.train()
        with seeded(task.device, task.seed):
            for step in range(steps):
                progress(step, steps)
                rows = np.sort(rng.choice(read.samples, min(task.batch, read.samples), replace=False))
                value = loss_value(task.loss, model, read.batch(rows))
                if not math.isfinite(value.item()):
                    raise PlanError(f"the loss is {value.item()} in step {step}: give a lower --rate, or --steps 0")
                optimiser.zero_grad()
                value.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        states.append(State(f"after {steps} steps", model))
    return states


def measure(
    task: Training,
    states: Sequence[State],
    name: str,
    source: AsStored,
    asked: Sequence[Codec],
    batches: int | None,
    progress: ProgressCallback = lambda done, of: None,
) -> Tuned:
    """Returns what each bound on the field `name`, with the others unchanged, does to the gradients of random batches.

    `progress` takes how many batches are done, and of how many.
    """
    read = _Fields(task, without=name)
    count = _batches(read.samples, task.batch, batches)
    bounds = [rounded_down(Fraction(exact.bound) * source.part.unit) for exact in source.codecs]
    rungs = [Rung(codec, bound) for codec, bound in zip(asked, bounds, strict=True)]
    takers = [Taker(copy.deepcopy(state.model).to(task.device), task.loss, task.seed) for state in states]
    kept, seen = _Kept(len(rungs) + 1, len(takers)), _Seen(task.seed)
    order = np.random.default_rng([task.seed, 2]).permutation(read.samples)
    with seeded(task.device, task.seed):
        for number in range(count):
            progress(number, count)
            rows = np.sort(order[number * task.batch : (number + 1) * task.batch])
            batch, chunks = read.batch(rows), source.chunks(rows)
            values = source.samples(rows, chunks)
            kept.begin([taker.take(batch | read.tensor(name, values)) for taker in takers], number)
            anew = seen.add(values, source.real(values))
            if anew is not None:
                kept.add(-1, [taker.take(batch | read.tensor(name, anew)) for taker in takers])
            for at, codec in enumerate(source.codecs):
                back = source.back(codec, chunks, rungs[at].effort)
                if codec.bound == 0:
                    kept.same(at)  # bit for bit: there is nothing to be taken
                else:
                    off = batch | read.tensor(name, source.samples(rows, back))
                    kept.add(at, [taker.take(off) for taker in takers])
    for rung, changes in zip(rungs, kept.changes[:-1], strict=True):
        rung.changes += [change_of(np.array(one)) for one in changes]
    anew_changes = [change_of(np.array(one)) for one in kept.changes[-1]] if seen.sigma else None
    noises = [noise_of(np.array(one)) for one in kept.taken]
    if not any(noise.size for noise in noises):
        raise PlanError("the gradients of all batches are the same: there is no noise to compare a bound's effect with")
    names = [state.name for state in states]
    seen_as = seen.whole, seen.sigma, anew_changes, source.labels
    return Tuned(source.part, read.samples, count, names, noises, rungs, *seen_as)


def check_task(task: Training, batches: int | None) -> None:
    """Raises PlanError or LayoutError if a measurement of these fields would only fail later."""
    parameters_of(task.model)
    try:
        torch.zeros(1, device=task.device)
    except (RuntimeError, AssertionError) as error:
        raise PlanError(f"--device {task.device}: {str(error).partition(chr(10))[0]}") from error
    _batches(_Fields(task).samples, task.batch, batches)


def _batches(samples: int, batch: int, asked: int | None) -> int:
    count = min(16, samples // batch) if asked is None else asked
    if count < FEWEST:
        raise PlanError(
            f"{count} batches say little about noise: at least {FEWEST} are needed; give a --batch-size below {batch}"
            f" of the {samples} samples, or more --batches"
        )
    if count * batch > samples:
        raise PlanError(
            f"--batches {count} of --batch-size {batch} need {count * batch} samples, and there are {samples}"
        )
    return count


@contextmanager
def seeded(device: str, seed: int) -> Iterator[None]:
    """Draws random numbers from this seed inside the block, on host and device; then restores torch's state."""
    kind = torch.device(device).type
    mps = torch.mps.get_rng_state() if kind == "mps" else None  # which fork_rng does not know how to ask
    others = [] if kind in ("cpu", "mps") else [torch.device(device)]
    with torch.random.fork_rng(devices=others, device_type=kind if others else "cuda"):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            if mps is not None:
                torch.mps.set_rng_state(mps)


class _Fields:
    """Batches of a task's fields, as DataLoader would hand them out."""

    def __init__(self, task: Training, without: str | None = None) -> None:
        self._device, self._collate = task.device, Collation(True)
        layouts = {name: inspect(task.path, dataset) for name, dataset in task.fields.items()}
        lengths = {name: layout.samples for name, layout in layouts.items()}
        if len(set(lengths.values())) != 1:
            said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise LayoutError(f"{task.path}: the fields of a sample must be equally long: {said}")
        self.samples = next(iter(lengths.values()))
        self._rows = {name: Rows(layout, native_order=True) for name, layout in layouts.items() if name != without}

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        pending = {name: source.start(rows) for name, source in self._rows.items()}
        batch: Batch = {}
        for name, one in pending.items():
            batch |= self.tensor(name, one.wait())
        return batch

    def tensor(self, name: str, values: NDArray[Any]) -> Batch:
        found = self._collate(values)
        if not isinstance(found, torch.Tensor):
            raise PlanError(f"{name}: torch makes no tensor of {values.dtype}: leave it out of the fields")
        return {name: found.to(self._device)}


class _Kept:
    """Gradients and their changes, batch by batch: [rung][state] lists of rows."""

    def __init__(self, rungs: int, states: int) -> None:
        self.taken: list[list[NDArray[np.float64]]] = [[] for _ in range(states)]
        self.changes: list[list[list[NDArray[np.float64]]]] = [[[] for _ in range(states)] for _ in range(rungs)]

    def begin(self, found: list[NDArray[np.float64]], number: int) -> None:
        for state, gradient in enumerate(found):
            if not np.isfinite(gradient).all():
                raise PlanError(
                    f"the gradient of batch {number} is not finite as the data are: nothing can be compared"
                )
            self.taken[state].append(gradient)

    def add(self, rung: int, found: list[NDArray[np.float64]]) -> None:
        for state, gradient in enumerate(found):
            self.changes[rung][state].append(gradient - self.taken[state][-1])

    def same(self, rung: int) -> None:
        for state in self.changes[rung]:
            state.append(np.zeros(1))


class _Seen:
    """What kind of numbers the values are, collected a batch at a time."""

    def __init__(self, seed: int) -> None:
        self.whole, self._counts, self._sum, self._values = True, True, 0.0, 0
        self._rng = np.random.default_rng([seed, 3])

    def add(self, values: NDArray[Any], real: NDArray[np.bool_]) -> NDArray[Any] | None:
        """Adds the measured values. For counts, returns others that a second measurement might have given."""
        some = values[real]
        self.whole = self.whole and bool((some == np.rint(some)).all())
        self._counts = self._counts and self.whole and bool(((some >= 0) & (some < LARGEST_COUNT)).all())
        if not self._counts:
            return None
        self._sum, self._values = self._sum + float(some.sum(dtype=np.float64)), self._values + some.size
        anew = values.copy()
        most = LARGEST_COUNT if values.dtype.kind == "f" else np.iinfo(values.dtype).max
        anew[real] = np.minimum(self._rng.poisson(some), most).astype(values.dtype)
        return anew

    @property
    def sigma(self) -> float | None:
        """Returns the uncertainty of counts by Poisson's law, as a root mean square."""
        return math.sqrt(self._sum / self._values) if self._counts and self._values else None
