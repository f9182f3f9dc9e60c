"""One reader of `solar bench`, in a guarded child: gets a job as JSON, then answers questions.

Its first answer says what it is and what it tried. {"check": N} is answered with digests of the first N batches,
{"seconds": S} with how many batches arrived in about S seconds, and the exact time.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from numpy.typing import NDArray

from solar.cli import sample_arguments
from solar.errors import PlanError, SolarError
from solar.io.hdf5.layouts import inspect
from solar.io.system import memory as machine
from solar.io.system.child_end import Caller
from solar.io.system.quantities import size_of
from solar.values import BATCHES_AHEAD

Batch = dict[str, Any]
WORKERS = (0, 1, 2, 4)
FREE = 4  # one part of so many of the free memory is what solar's buffer takes where nobody says how much
TRIED = 1_000_000  # the epoch that settings are tried with, so that the rounds read others
TRIAL = 5.0  # seconds at most for each setting


class Contestant:
    """Endless batches, of which those that were ready before the clock began are not counted."""

    def __init__(
        self,
        begin: Callable[[Iterator[int]], Iterator[Batch]],
        ready: int,
        epoch: int,
        hits: Callable[[], int] = lambda: 0,
    ) -> None:
        """`hits`: how many samples so far were found in a buffer of the reader's own."""
        self._begin, self._ready, self._epoch, self.hits = begin, ready, epoch, hits
        self._stream: Iterator[Batch] | None = None

    def digests(self, batches: int) -> list[str]:
        """Returns digests of the first batches of epoch 0, which all contestants read."""
        return [batch_digest(batch) for batch in itertools.islice(self._begin(iter([0])), batches)]

    def timed(self, seconds: float) -> tuple[int, float]:
        """Returns batches and the time they took, counted once those that may have been ready before are out."""
        if self._stream is None:
            self._stream = self._begin(itertools.count(self._epoch, 2))
        begin = time.perf_counter()
        for came, _ in enumerate(self._stream, 1):
            if came > self._ready or time.perf_counter() - begin > seconds / 2:
                break
        start, least = time.perf_counter(), max(1, self._ready // 2)
        for came, _ in enumerate(self._stream, 1):
            passed = time.perf_counter() - start
            if came >= least and passed >= seconds:
                break
        return came, passed


def batch_digest(batch: Batch) -> str:
    """Returns a digest of a batch's values, types and shapes."""
    found = hashlib.blake2b(digest_size=16)
    for name, values in sorted(batch.items()):  # who puts a batch together has an order of fields of its own
        columns = values.shape[1] if values.is_sparse_csr else ""
        found.update(f"{name} {values.layout} {columns};".encode())
        for array in tensor_arrays(values):
            found.update(f"{array.dtype} {array.shape};".encode())
            found.update(array.tobytes())
    return found.hexdigest()


def tensor_arrays(values: Any) -> list[NDArray[Any]]:
    """Returns the arrays of a tensor: itself, or values and their places for a nested or sparse one."""
    if values.is_nested:
        parts = [values.values(), values.offsets()]
    elif values.is_sparse_csr:
        parts = [values.values(), values.col_indices(), values.crow_indices()]
    else:
        parts = [values]
    return [part.numpy() for part in parts]


def solar_side(job: dict[str, Any]) -> tuple[Contestant, dict[str, Any]]:
    from solar import DataLoader, H5Dataset, PlanSampler  # in this process alone: torch takes seconds to import

    fields, samples = sample_arguments.fields(asked_of(job), job["names"])
    data = H5Dataset(job["paths"], fields, samples=samples, where=asked_of(job).where)
    sampler = PlanSampler(data, 1, 0, seed=job["seed"], drop_last=True)
    loader = DataLoader(data, job["batch"], sampler=sampler, drop_last=True, buffer=job["buffer"], ahead=BATCHES_AHEAD)

    def begin(epochs: Iterator[int]) -> Iterator[Batch]:
        for epoch in epochs:
            loader.set_epoch(epoch)
            yield from loader

    facts: dict[str, Any] = {"setting": {}, "tried": [], "untried": 0}
    return Contestant(begin, BATCHES_AHEAD, 1, lambda: int(loader.stats()["buffer_hits"])), facts


def asked_of(job: dict[str, Any]) -> argparse.Namespace:
    """Returns the kind of samples that the command line asks for; rows by default."""
    return argparse.Namespace(**sample_arguments.NO_KIND | job.get("asked", {}), file=job["paths"])


def h5py_samples_of(job: dict[str, Any]) -> Any:
    """Returns the samples as h5py reads them: rows by H5pySamples, other kinds by H5pyPieces."""
    from solar.baseline.h5py_samples import (
        H5pySamples,
        h5py_pieces,  # in this process alone, as above
    )

    asked = asked_of(job)
    if sample_arguments.of_rows_alone(asked):
        return H5pySamples(job["paths"], job["names"])
    named = {} if sample_arguments.unequal(asked) else {name: inspect(job["paths"], name) for name in job["names"]}
    layouts, own = sample_arguments.sample_maps(asked, named)
    return h5py_pieces(
        layouts, own, sample_arguments.named_groups(asked), sample_arguments.masked_samples(asked, layouts, own)
    )


def torch_side(job: dict[str, Any]) -> tuple[Contestant, dict[str, Any]]:
    """Returns torch's loader over h5py with the best settings for this file, and with solar's memory."""
    import solar.filters  # noqa: F401 - h5py reads what `solar compress` wrote by our plug-in
    from solar.baseline.h5py_loader import batches_from, best_of, plain_loader  # in this process alone, as above

    plain = h5py_samples_of(job)
    memory = allowed(job["buffer"], BATCHES_AHEAD * job["batch"] * plain.nbytes())

    def contestant(setting: dict[str, Any], epoch: int = 2) -> Contestant:
        def begin(epochs: Iterator[int]) -> Iterator[Batch]:
            return batches_from(plain_loader(plain, job["batch"], job["seed"], setting, memory), epochs)

        return Contestant(begin, 2 * setting["workers"], epoch)  # torch has two batches of each worker on their way

    def timed(setting: dict[str, Any]) -> float:
        batches, seconds = contestant(setting, TRIED).timed(min(job["seconds"] / 4, TRIAL))
        return batches * float(job["batch"]) / seconds

    best, tried, untried = best_of(plain, job["batch"], memory, job["workers"], timed, job["trying"])
    return contestant(best), {"setting": best, "tried": tried, "untried": untried, "memory": memory}


def allowed(buffer: str | None, least: int) -> int:
    """Returns the bytes for caches of PyTorch's side: what solar's buffer may have, or the share of free memory that it
    takes by itself.

    It is never less than the batches that solar reads ahead take.
    """
    if buffer is None:
        return max(least, machine.free_nbytes() // FREE)
    try:
        return max(least, size_of(buffer, machine.memory_nbytes()))
    except PlanError:  # which solar's own side says in better words
        return least


SIDES = {"solar": solar_side, "torch": torch_side}


def main(caller: Caller, text: str) -> int:
    """Answers until nothing more is asked. Returns the exit code. The last answer says why a file is unreadable."""
    try:
        answer_questions(caller, json.loads(text))
    except SolarError as error:
        caller.send({"refused": str(error)})
    return 1


def answer_questions(caller: Caller, job: dict[str, Any]) -> None:
    contestant, facts = SIDES[job["reader"]](job)
    caller.send(facts)
    while True:
        asked = caller.receive()
        if "check" in asked:
            caller.send({"digests": contestant.digests(asked["check"])})
            continue
        batches, seconds = contestant.timed(asked["seconds"])
        caller.send({"samples": batches * job["batch"], "seconds": seconds, "hits": contestant.hits()})
