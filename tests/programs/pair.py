"""Pair: solar's loader and torch's, which do the same and must have the same batches and draws, and leave nothing."""

from __future__ import annotations

import errno
import gc
import itertools
import json
import os
import pickle
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import torch
from faults_kit import fault, injected, reads
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import DistributedSampler, RandomSampler, WeightedRandomSampler

from solar import DataLoader, PlanError, SolarError, _native, read

from .oracle import AROUND, Listed, collated, made, told, write

ALLOWED = (SolarError, OSError, MemoryError)  # what a fault may become
LOOK = 0.12  # seconds after which a change of an open file is seen
MORE_TRIES = 20  # that an iterator may need to end beside its batches
MOST_READ_AHEAD = 8  # epochs, by a buffer for very few samples
PATIENCE = 5.0  # seconds until what ends in a thread of its own has ended
SPARE = 4  # threads and descriptors that are made when first needed, and stay
OF_THE_WEB = 1000  # with those of connections, and of the server

Batches = list[Any]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators of the user's that a loader draws from."""
    owners = loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)
    found = [getattr(owner, "generator", None) for owner in owners]
    return [one for at, one in enumerate(found) if one is not None and all(one is not other for other in found[:at])]


class EveryThird:
    """A batch sampler of the user's, with batches of different sizes, some samples in it twice."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __iter__(self) -> Iterator[list[int]]:
        begin = 0
        while begin < self.samples:
            size = 1 + begin % 5
            yield [(3 * i) % self.samples for i in range(begin, min(begin + size, self.samples))]
            begin += size


class Side:
    """One of the two loaders. The global generator is, while it runs, as if there were no other loader."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make, self.kept = make, list[Any]()
        self.rng = generator(0).get_state()
        self.loader = make()

    @contextmanager
    def alone(self) -> Iterator[Any]:
        before = torch.get_rng_state()
        torch.set_rng_state(self.rng)
        try:
            yield self.loader
        finally:
            self.rng = torch.get_rng_state()
            torch.set_rng_state(before)

    def reseed(self, seed: int) -> None:
        """After an epoch of which nobody says what it has drawn."""
        self.rng = generator(seed).get_state()
        for one in generators_of(self.loader):
            one.manual_seed(seed)

    def draws(self) -> list[bytes]:
        """The state of every generator that it draws from."""
        return [one.numpy().tobytes() for one in (self.rng, *(one.get_state() for one in generators_of(self.loader)))]

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.loader, "set_epoch"):
            return self.loader.set_epoch(epoch)
        samplers = self.loader.sampler, self.loader.batch_sampler, getattr(self.loader.batch_sampler, "sampler", None)
        for one in (self.loader.listed, *samplers):
            if hasattr(one, "set_epoch"):
                one.set_epoch(epoch)


class Pair:
    """`data` makes solar's dataset and `samples` a list of what is in it; `options` makes what both loaders are given.

    `of_torch` makes it for torch's where that differs; other arguments are for solar's alone.
    """

    def __init__(
        self,
        data: Callable[[], Any],
        samples: Callable[[int], list[Any]] | None,
        options: Callable[[Any], dict[str, Any]],
        of_torch: Callable[[Any], dict[str, Any]] | None = None,
        *,
        around: str = "",
        sets_epochs: bool = False,
        **own: Any,
    ) -> None:
        self.data, self.samples, self.options, self.of_torch, self.own = (
            data,
            samples,
            options,
            of_torch or options,
            own,
        )
        self.around = AROUND.get(around, lambda one: one)
        self.sets_epochs, self.epochs, self.unraisable = sets_epochs, 0, list[str]()
        sys.unraisablehook = lambda one: self.unraisable.append(f"{one.object!r}: {one.exc_value!r}")
        threading.excepthook = lambda one: self.unraisable.append(f"in {one.thread}: {one.exc_value!r}")
        self.torch = Side(self.torchs)
        self.solar = Side(self.solars)
        assert len(self.solar.loader.dataset) == len(self.torch.loader.dataset), "another number of samples"
        self.before: tuple[int, int] | None = None

    # --- the loaders ----

    def torchs(self, **_: Any) -> Any:
        options = self.of_torch(self.around(self.data()))  # of solar's dataset, for some orders look at its chunks
        if options.get("batch_size", 1) is not None and self.samples is not None:
            options["collate_fn"] = collated
        listed = self.data() if self.samples is None else Listed(self.samples)
        loader: Any = TorchLoader(self.around(listed), **options)
        loader.listed = listed
        return loader

    def solars(self, **other: Any) -> Any:
        """solar's loader. A buffer that is too small becomes the one that its error names, which must be enough."""
        own = self.own | other
        if isinstance(own.get("buffer"), int) and own["buffer"]:
            own["buffer"] = self.enough(own)
        data = self.around(self.data())
        return DataLoader(data, **self.options(data), **own)

    def enough(self, own: dict[str, Any]) -> Any:
        before = torch.get_rng_state()
        try:
            data = self.around(self.data())
            with DataLoader(data, **self.options(data), **own) as loader:
                next(iter(loader), None)
        except PlanError as error:
            if not (least := re.search(r"give at least buffer=(\d+)", str(error))):
                raise
            return int(least[1])
        finally:
            torch.set_rng_state(before)
        return own["buffer"]

    # --- what both do ----

    def both(self, act: Callable[[Side], Any], *, resumes: bool = False) -> None:
        """Does the same on both sides, and compares what comes of it and, unless it goes on from a state, the draws.

        A user who goes on saves the global generator, too; and solar draws again what the user's own gave before.
        """
        if self.sets_epochs and not resumes:
            self.torch.set_epoch(self.epochs)
            self.solar.set_epoch(self.epochs)
        self.epochs += 1
        with self.torch.alone():
            theirs = act(self.torch)
        with self.solar.alone():
            ours = act(self.solar)
        self.compare(ours, theirs)
        if resumes:
            self.solar.rng = self.torch.rng
        elif ours:
            self.compare_draws()
        self.mark()

    def compare(self, ours: Batches, theirs: Batches) -> None:
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
            assert one == other, (
                f"batch {number} of {len(theirs)} differs:\n{one!r:.600}\nand torch's is\n{other!r:.600}"
            )
        assert len(ours) == len(theirs), f"{len(ours)} batches, and torch has {len(theirs)}"

    def compare_draws(self) -> None:
        same = [one == other for one, other in zip(self.solar.draws(), self.torch.draws(), strict=True)]
        assert all(same), f"generators are not where torch leaves them: the global one and the user's: {same}"

    def epoch(self) -> None:
        """A whole epoch."""
        self.both(lambda side: list(map(told, side.loader)))

    def recover(self) -> None:
        """Epochs after one with errors: what was read ahead for them may have failed, too. In the end two have none."""
        right = 0
        for _ in range(MOST_READ_AHEAD):
            if self.sets_epochs:
                self.torch.set_epoch(self.epochs)
                self.solar.set_epoch(self.epochs)
            with self.torch.alone() as loader:
                theirs = list(map(told, loader))
            with self.solar.alone():
                ours = self.outcomes(len(theirs), None, lambda: None, closes=False)
            place(ours, theirs)
            right = 0 if any(isinstance(one, Exception) for one in ours) else right + 1
            if right == 2:
                return
        raise AssertionError("errors of before do not end")

    def leave(self, batches: int) -> None:
        """An epoch that is left after so many batches."""

        def left(side: Side) -> Batches:
            found = []
            for batch in side.loader:
                found.append(told(batch))
                if len(found) >= batches:
                    break
            return found

        self.both(left)

    def abandon(self, batches: int) -> None:
        """The same, and the iterator stays as it is."""

        def abandoned(side: Side) -> Batches:
            side.kept.append(iter(side.loader))
            return list(map(told, itertools.islice(side.kept[-1], batches)))

        self.both(abandoned)

    def beside(self) -> None:
        """An epoch in turns with a second loader of the same."""

        def turns(side: Side) -> Batches:
            other = Side(side.make)
            if self.sets_epochs:
                other.set_epoch(self.epochs - 1)
            found = [told(batch) for two in itertools.zip_longest(side.loader, other.loader) for batch in two]
            if side is self.solar:
                other.loader.close()
            return found

        self.both(turns)

    def peek(self) -> None:
        """What does not change anything: the state, the counts, the report, the length."""
        loader, before = self.solar.loader, self.solar.draws()
        with self.solar.alone():
            json.dumps(loader.state_dict())
            str(loader.report())
            assert loader.stats()["samples"] >= 0
            assert len(loader) == len(self.torch.loader)
        assert self.solar.draws() == before

    # --- going on from a state ----

    def resume(self, batches: int, *, close: bool = True, **other: Any) -> None:
        """After so many batches another loader, with other options of solar's, has the rest."""

        def whole(side: Side) -> Batches:
            iterator = iter(side.loader)
            found = list(map(told, itertools.islice(iterator, batches)))
            if side is self.torch:
                return found + list(map(told, iterator))
            over = len(found) < batches  # the state is then that of the next epoch's beginning
            state = through_json(side.loader.state_dict())
            side.kept.append(iterator)
            if close:
                side.loader.close()
            side.loader = side.make(**other)
            side.loader.load_state_dict(state)
            if self.sets_epochs and not over:
                side.set_epoch(self.epochs - 1)
            return found if over else found + list(map(told, side.loader))

        if self.sets_epochs:
            self.torch.set_epoch(self.epochs)
            self.solar.set_epoch(self.epochs)
        self.both(whole, resumes=True)

    def begun_elsewhere(self, epochs: int, batches: int) -> None:
        """Another process has had so many epochs, and batches of one more, when it is killed; this one goes on.

        This process must not have read anything.
        """
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(receive)
                with os.fdopen(send, "wb") as pipe, self.solar.alone() as loader:
                    found = []
                    for epoch in range(epochs + 1):
                        if self.sets_epochs:
                            self.solar.set_epoch(epoch)
                        own = map(told, itertools.islice(loader, batches) if epoch == epochs else loader)
                        found.append(list(own))
                    pickle.dump((found, through_json(loader.state_dict()), torch.get_rng_state()), pipe)
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        os.close(send)
        with os.fdopen(receive, "rb") as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        found, state, rng = pickle.loads(text)
        for epoch in range(epochs):
            if self.sets_epochs:
                self.torch.set_epoch(epoch)
            with self.torch.alone() as loader:
                assert found[epoch] == list(map(told, loader)), f"epoch {epoch} of the other process"
        self.solar.rng, self.epochs = rng, epochs
        self.solar.loader.load_state_dict(state)
        over = len(found[epochs]) < batches  # the state is then that of the next epoch's beginning

        def rest(side: Side) -> Batches:
            if side is self.solar:
                return found[epochs] + ([] if over else list(map(told, side.loader)))
            return list(map(told, side.loader))

        if self.sets_epochs:
            self.torch.set_epoch(epochs)
            if not over:
                self.solar.set_epoch(epochs)
        self.both(rest, resumes=True)

    # --- what goes wrong ----

    def faulty(self, *faults: tuple[Any, ...], fails: bool = True) -> None:
        """An epoch during which the system answers so: its batches, or errors in their place; and one without."""
        self.with_errors(lambda: injected(faults), fails)

    def changed(self, what: str, path: str, batches: int) -> None:
        """The file is changed after so many batches; while it is, no epoch begins; then it is put back."""
        kept = f"{path}.kept"
        os.link(path, kept)
        stored, facts = Path(path).read_bytes(), Path(path).stat()

        @contextmanager
        def nothing() -> Iterator[None]:
            yield

        def change() -> None:
            CHANGES[what](path)
            time.sleep(LOOK)

        def put_back() -> None:
            if Path(path).exists() and Path(path).samefile(kept):
                Path(kept).unlink()
            else:
                Path(kept).replace(path)
            with Path(path).open("r+b") as file:
                file.write(stored)
                file.truncate()
            os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

        self.with_errors(nothing, True, batches, change, put_back, new_bytes=what == "written to")

    def damaged(self, bad: Sequence[int]) -> None:
        """An epoch of samples with numbers `y` of which these do not decode: their batches are errors, or smaller."""
        skips = self.solar.loader.on_error == "skip"
        with self.torch.alone() as loader:
            theirs = [left_of(batch, bad, skips) for batch in loader]
        with self.solar.alone():
            ours = self.outcomes(len(theirs), None, lambda: None, closes=False)
        self.compare(["error" if isinstance(one, SolarError) else one for one in ours], [one for one in theirs if one])

    def closed(self, batches: int) -> None:
        """The loader is closed after so many batches. The iterator says so, and a new epoch begins anew."""

        def some_batches(side: Side) -> Batches:
            iterator = iter(side.loader)
            found = list(map(told, itertools.islice(iterator, batches)))
            if side is self.solar:
                side.loader.close()
                try:
                    next(iterator)
                except (RuntimeError, StopIteration):
                    pass
                else:
                    raise AssertionError("a closed iterator has given a batch")
            return found

        self.both(some_batches)

    def closed_beside(self, seconds: float, *faults: tuple[Any, ...]) -> None:
        """Another thread closes the loader meanwhile: so many batches, the error that says so, and an end."""
        closing = threading.Timer(seconds, self.solar.loader.close)

        @contextmanager
        def beside() -> Iterator[None]:
            closing.start()
            try:
                with injected(faults):
                    yield
            finally:
                closing.join(PATIENCE)
                assert not closing.is_alive(), "close() does not return"

        self.with_errors(beside, True, closes=True)

    def with_errors(
        self,
        around: Callable[[], Any],
        fails: bool,
        batches: int | None = None,
        change: Callable[[], None] = lambda: None,
        put_back: Callable[[], None] | None = None,
        closes: bool = False,
        new_bytes: bool = False,  # may be in batches, of a file that is written to, for a tenth of a second
    ) -> None:
        if self.sets_epochs:
            self.torch.set_epoch(self.epochs)
            self.solar.set_epoch(self.epochs)
        with self.torch.alone() as loader:
            theirs = list(map(told, loader))
        with self.solar.alone(), around():
            ours = self.outcomes(len(theirs), batches, change, closes)
            if put_back is not None:
                self.none_begins()
        if put_back is not None:
            put_back()
        errors = [one for one in ours if isinstance(one, Exception)]
        assert fails or not errors, f"what passes became an error: {errors[0]!r}"
        if closes:
            ours, theirs = until_closed(ours, theirs)
        if new_bytes:
            ours = [one if isinstance(one, Exception) or one in theirs else SolarError("new bytes") for one in ours]
        place(ours, theirs)
        if self.solar.loader._sampler_state.pending is not None:  # no epoch began: the next would be that of the state
            self.solar.loader.load_state_dict({})
        self.solar.reseed(self.epochs)
        self.torch.reseed(self.epochs)
        del ours
        if fails:
            self.recover()
        self.epoch()

    def outcomes(self, most: int, batches: int | None, change: Callable[[], None], closes: bool) -> Batches:
        """The batches of an epoch, and errors where they were raised. `change` is called after so many batches."""
        found: Batches = []
        allowed = (*ALLOWED, RuntimeError) if closes else ALLOWED
        iterator: Any = None
        for number in range(most + MORE_TRIES):
            if batches is not None and number == min(batches, most):
                change()
            try:
                iterator = iter(self.solar.loader) if iterator is None else iterator
                found.append(told(next(iterator)))
            except StopIteration:
                return found
            except allowed as error:
                found.append(error.with_traceback(None))
                if closes:
                    return found
        # An epoch that cannot begin says so each time.
        assert all(isinstance(one, Exception) for one in found), f"the epoch has no end: {found[-1]!r:.300}"
        return found

    def none_begins(self) -> None:
        try:
            next(iter(self.solar.loader))
        except SolarError:
            return
        except StopIteration:
            return
        raise AssertionError("an epoch has begun over a file that was changed")

    # --- the end ----

    def mark(self) -> None:
        """Notes what the process has after its first epoch."""
        if self.before is None:
            self.before = threads_and_descriptors()

    def end(self) -> None:
        """Nothing is left: no memory of batches, thread, descriptor, child or error that nobody saw."""
        self.solar.loader.close()
        self.solar.kept.clear()
        self.torch.kept.clear()
        del self.solar.loader, self.torch.loader
        write("last.h5", x=made((8,), "f4", 0))
        end = time.monotonic() + PATIENCE
        while (left := self.leftovers()) and time.monotonic() < end:
            read("last.h5", "x")  # a thread keeps the memory that it has read to last
            gc.collect()
            time.sleep(0.01)
        assert not left, left

    def leftovers(self) -> str:
        threads, descriptors = threads_and_descriptors()
        before = self.before or (threads, descriptors)
        spare = OF_THE_WEB if "obstore" in sys.modules else SPARE
        alive = [one.name for one in threading.enumerate() if one is not threading.main_thread() and not one.daemon]
        in_use = _native.pool_stats()["in_use"]
        return "; ".join(
            said
            for said, wrong in (
                (f"{in_use} bytes of batches are held", in_use and "obstore" not in sys.modules),
                (f"threads of Python: {alive}", alive),
                (f"{threads} threads, and there were {before[0]}", threads > before[0] + spare),
                (
                    f"{descriptors} descriptors, and there were {before[1]}: {open_files()}",
                    descriptors > before[1] + spare,
                ),
                (f"errors that nobody saw: {self.unraisable}", self.unraisable),
            )
            if wrong
        )


def threads_and_descriptors() -> tuple[int, int]:
    """How many there are. A thread keeps the file that it has read last."""
    here = str(Path.cwd())
    links = (str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink())
    return sum(1 for _ in Path("/proc/self/task").iterdir()), sum(not one.startswith(here) for one in links)


def open_files() -> dict[str, int]:
    """What is open, and how often."""
    links = (one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink())
    return dict(Counter(re.sub("[0-9]+", "", str(one)) for one in links))


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(state)
    assert len(text) < 1024, f"a state of {len(text)} bytes"
    return dict(json.loads(text))


def until_closed(ours: Batches, theirs: Batches) -> tuple[Batches, Batches]:
    """What came before the error that says that the loader was closed, and as much of torch's."""
    closed = bool(ours) and isinstance(ours[-1], Exception)
    ours = ours[:-1] if closed else ours
    if closed:
        theirs = theirs[: len(ours)]
    return ours, theirs


def place(ours: Batches, theirs: Batches) -> None:
    """Finds each batch among torch's, in order: an error may stand for the batch that it takes the place of, or not."""
    at = pending = 0
    for number, one in enumerate(ours):
        if isinstance(one, Exception):
            pending += 1
            continue
        found = next((k for k in range(at, min(at + pending, len(theirs) - 1) + 1) if theirs[k] == one), None)
        assert found is not None, (
            f"item {number} is none of torch's batches {at} to {at + pending} of {len(theirs)}: {one!r:.300}; "
            f"all are {[theirs.index(one) if one in theirs else f'{one!r:.90}' for one in ours]}"
        )
        pending -= found - at
        at = found + 1
    assert len(theirs) - at <= pending, f"{len(theirs) - at} batches are missing, and {pending} errors say why"


def left_of(batch: dict[str, Any], bad: Sequence[int], skips: bool) -> Any:
    """What comes of a batch without these samples: less, nothing, or an error."""
    good = torch.tensor([number not in bad for number in batch["y"].tolist()])
    if bool(good.all()):
        return told(batch)
    if not skips:
        return "error"
    return told({key: part[good] for key, part in batch.items()}) if bool(good.any()) else None


def truncate(path: str) -> None:
    os.truncate(path, Path(path).stat().st_size // 2)


def write_over(path: str) -> None:
    with Path(path).open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"?" * 100)


def replace(path: str) -> None:
    Path(f"{path}.new").write_bytes(b"?" * Path(path).stat().st_size)
    Path(f"{path}.new").replace(path)


CHANGES: dict[str, Callable[[str], None]] = {
    "cut short": truncate, "written to": write_over, "replaced": replace, "deleted": os.unlink,
}  # fmt: skip


def damage(path: str, name: str, chunk: int) -> range:
    """A bit of a chunk with a checksum falls over. Gives the rows that lie in it."""
    with h5py.File(path) as file:
        stored = file[name].id.get_chunk_info(chunk)
        rows = file[name].chunks[0]
    facts = Path(path).stat()
    with Path(path).open("r+b") as opened:
        opened.seek(stored.byte_offset + stored.size // 2)
        byte = opened.read(1)[0]
        opened.seek(stored.byte_offset + stored.size // 2)
        opened.write(bytes([byte ^ 1]))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    return range(stored.chunk_offset[0], stored.chunk_offset[0] + rows)


__all__ = [
    "DistributedSampler",
    "EveryThird",
    "Pair",
    "RandomSampler",
    "TorchLoader",
    "WeightedRandomSampler",
    "damage",
    "errno",
    "fault",
    "generator",
    "reads",
    "shutil",
    "through_json",
]  # fmt: skip
