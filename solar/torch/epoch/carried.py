"""The states of a dataset in torch's worker processes: sent with each batch, and restored in the same worker."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.data._utils.worker as torchs_worker
from torch.utils.data import _DatasetKind, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data._utils.worker import _IterableDatasetStopIteration

from solar.torch.order.position import has_state


def parts_of(fetcher: Any) -> dict[str, Any]:
    """A fetcher's dataset and its iterator, if they have states. A dataset that is its own iterator counts once."""
    dataset, iterator = fetcher.dataset, getattr(fetcher, "dataset_iter", None)
    parts = {"dataset": None if iterator is dataset else dataset, "iterator": iterator}
    return {name: part for name, part in parts.items() if has_state(part)}


def states_of(fetcher: Any) -> dict[str, Any]:
    states: dict[str, Any] = {name: part.state_dict() for name, part in parts_of(fetcher).items()}
    # An iterator that came to its end may say that it is at its beginning: the fetcher knows better.
    return states | {"ended": True} if states and getattr(fetcher, "ended", False) else states


def restore_iterator(fetcher: Any, told: dict[str, Any]) -> None:
    """Restores the iterator's state, after the fetcher was made. The dataset's own state is restored before."""
    if "iterator" in told:
        fetcher.dataset_iter.load_state_dict(told["iterator"])
    if "ended" in told:
        fetcher.ended = True


# --- in the worker process ----


@dataclass
class Carried:
    """A batch from a worker, with the states there right after it was made.

    The states are pickled at once, for the dataset goes on. So tensors in them need no shared memory.
    """

    data: Any
    worker: int
    states: bytes

    def pin_memory(self) -> Carried:
        return Carried(pin_memory(self.data), self.worker, self.states)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Ended(_IterableDatasetStopIteration):
    """torch's message that a worker's iterable dataset came to its end, with the states after it."""

    states: bytes


class Carrying:
    """The worker's init function. After the user's, it makes batches carry the state of a dataset that has one.

    Else it leaves everything as torch made it. `told` are the states in which the workers begin.
    """

    def __init__(self, users: Callable[[int], None] | None, told: list[bytes | None]) -> None:
        self._users = users
        self._told = told

    def __call__(self, worker: int) -> None:
        if self._users is not None:
            self._users(worker)
        pickled = self._told[worker]
        told: dict[str, Any] = _unpickled(pickled) or {}
        dataset: Any = get_worker_info().dataset  # type: ignore[union-attr]
        torchs: Callable[..., Any] = _DatasetKind.create_fetcher

        def create_fetcher(kind: Any, of: Any, *options: Any) -> Any:
            if of is not dataset:  # it belongs to a loader inside this dataset
                return torchs(kind, of, *options)
            if "dataset" in told:
                dataset.load_state_dict(told["dataset"])
            fetcher = torchs(kind, of, *options)
            restore_iterator(fetcher, told)
            told.clear()  # persistent workers come here again for the next epoch
            return _Fetcher(fetcher, worker) if parts_of(fetcher) else fetcher

        _DatasetKind.create_fetcher = staticmethod(create_fetcher)  # type: ignore[method-assign]


class _Fetcher:
    """torch's fetcher, whose batches carry the states."""

    def __init__(self, torchs: Any, worker: int) -> None:
        self._torchs = torchs
        self._worker = worker
        self._states = b""
        torchs_worker._IterableDatasetStopIteration = self._end  # type: ignore[assignment,misc]

    def fetch(self, index: Any) -> Carried:
        try:
            data = self._torchs.fetch(index)
        except StopIteration:
            self._states = pickle.dumps(states_of(self._torchs))
            raise
        return Carried(data, self._worker, pickle.dumps(states_of(self._torchs)))

    def _end(self, worker: int) -> Ended:
        return Ended(worker, self._states)


# --- in the loader's process ----


class WorkerStates:
    """Each worker's states with its last batch that was handed out, and which worker's turn it is.

    They are plain values in a loader's state, and pickled in here. None: a worker that has sent nothing yet.
    """

    def __init__(self, workers: int, told: dict[str, Any], own: bool, lasting: bool) -> None:
        self.next: int = told.get("next", 0)
        self.handed_out = [_pickled(states) for states in told.get("workers", [None] * workers)]
        self._received = list(self.handed_out)  # is ahead of what was handed out
        self.given = [0] * workers  # batches that each worker gave in this epoch and that were handed out
        self.last = 0  # the worker that gave the last of them
        self._own = own  # the dataset itself has a state
        self._lasting = lasting  # the workers are persistent

    def receive(self, data: Any) -> None:
        """Takes note of what came from a worker."""
        if isinstance(data, Carried):
            self._received[data.worker] = data.states
        elif isinstance(data, Ended):
            self._received[data.worker_id] = data.states

    def hand_out(self, data: Any, *worker: int) -> Any:
        """The batch itself, which came from `worker`. torch before 2.6 does not give the worker."""
        carried = isinstance(data, Carried)
        last = data.worker if carried else worker[0] if worker else self.next
        self.next, self.last = (last + 1) % len(self.handed_out), last
        self.given[last] += 1
        if not carried:
            return data
        self.handed_out[last] = data.states
        return data.data

    def begin_again(self) -> None:
        """Called when persistent workers have begun another epoch."""
        self.handed_out = [_pickled(states) for states in self._again()]
        self.given = [0] * len(self.given)

    def state(self, begun: bool) -> dict[str, Any]:
        """All states; if not `begun`, those in which these workers would begin an epoch now. Empty if there is none."""
        if begun:
            states = [_unpickled(pickled) for pickled in self.handed_out]
        else:  # Workers that are not persistent are gone; the next are made from the dataset in this process.
            states = self._again() if self._lasting else []
        return {"workers": states, "next": self.next if begun else 0} if any(states) else {}

    def _again(self) -> list[dict[str, Any] | None]:
        """The states before a new iterator is made of the datasets."""
        told = [_unpickled(pickled) or {} for pickled in self._received]
        last = [states.get("dataset", states.get("iterator")) if self._own else None for states in told]
        return [None if state is None else {"dataset": state} for state in last]


def _pickled(states: dict[str, Any] | None) -> bytes | None:
    return None if states is None else pickle.dumps(states)


def _unpickled(pickled: bytes | None) -> dict[str, Any] | None:
    return None if pickled is None else _Unpickler(io.BytesIO(pickled)).load()


class _Unpickler(pickle.Unpickler):
    """Unpickles tensors, too, without the warning of torch before 2.6 about its own pickles."""

    def find_class(self, module: str, name: str) -> Any:
        whole = (module, name) == ("torch.storage", "_load_from_bytes")
        return _storage if whole else super().find_class(module, name)


def _storage(pickled: bytes) -> Any:
    return torch.load(io.BytesIO(pickled), weights_only=True)
