"""DataLoader: torch's, with a native engine under H5Dataset."""

from __future__ import annotations

import logging
import operator
import os
import warnings
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

import torch
import torch.utils.data
from torch.utils.data import RandomSampler, Sampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from solar.buffer.buffer import LoaderBuffer
from solar.buffer.buffer_memory import Balance, Exchanges
from solar.buffer.buffer_size import Profile, Size, requested_bytes
from solar.errors import PlanError
from solar.io.system.cores import own_cores
from solar.loader.batch import BatchMaker
from solar.loader.iterator import EpochIterator
from solar.loader.stats import Stats
from solar.loader.workers import Workers
from solar.samplers.epoch_position import EpochPosition, SamplerState
from solar.samplers.samplers import PlanBatchSampler, PlanSampler, is_mixture
from solar.samples.dataset import H5Dataset
from solar.samples.source import SampleSource, sample_source

if TYPE_CHECKING:
    from solar.device.copier import DeviceCopier
    from solar.device.options import Device, DeviceOptions, Where
    from solar.loader.adopt import AdoptedPass, AdoptedReads
    from solar.loader.adopt_plans import AdoptedPlans
    from solar.loader.report import Report

OnError = Literal["raise", "skip"]
T = TypeVar("T", covariant=True)
log = logging.getLogger("solar")

PLAIN = (str, bool, int, float, torch.dtype, torch.device)  # repr shows these as they are
DEFAULTS: dict[str, Any] = {  # repr shows these arguments only if they differ
    **{"num_workers": 0, "pin_memory": False, "drop_last": False, "timeout": 0, "ahead": None, "buffer": None},
    **{"epochs": None, "exchange": "auto", "balance": None, "device": None, "dtype": None, "channels_last": False},
    **{"static": False, "decode": "host", "resident": None, "reader": "auto", "on_error": "raise", "service": None},
    "adopt": True,
}


# What only the native engine heeds, and the values that ask nothing of it.
NATIVE_ONLY: dict[str, tuple[Any, ...]] = {
    **{"ahead": (None,), "buffer": (None, 0, "0"), "epochs": (None,), "storage": (None,)},
    **{"exchange": ("auto", "off"), "service": (None,)},
}
ADOPTED = ("ahead", "buffer")  # of these, what is also heeded where a Dataset of the user's is adopted
PLANNED = ("epochs", "storage", "exchange", "service")  # and where what it reads is planned
NEVER_READ = (range, list, tuple, torch.utils.data.TensorDataset)  # that never read a file


class HostBatches:
    """Stands in for DeviceOptions where batches stay on the host, so that nothing about devices is imported."""

    keeps = False

    def landing(self, dataset: Any, stats: Stats) -> None:
        return None

    def native_landing(
        self, source: SampleSource, making: BatchMaker, stats: Stats, ahead: int | None
    ) -> tuple[DeviceCopier | None, SampleSource]:
        return None, source

    def close(self) -> None:
        pass


def _device_options(**given: Any) -> DeviceOptions | HostBatches:
    """Returns the device options for these arguments. Raises ValueError where they make no sense."""
    if all(value == DEFAULTS[name] for name, value in given.items()):
        return HostBatches()
    from solar.device.options import DeviceOptions

    return DeviceOptions(**given)


class DataLoader(torch.utils.data.DataLoader[T]):
    """torch.utils.data.DataLoader, argument for argument; native threads instead of workers read an H5Dataset.

    Batches, their order and every random draw are torch's, over every dataset. One that is no H5Dataset is read by its
    own `__getitem__`, which torch's loader calls.
    In both cases `state_dict` gives its position, and `load_state_dict` resumes from there.

    `ahead` is the number of batches read before they are asked for; None: 4, of
    files by URL 64, or fewer if these take more than 1 GiB.
    `num_workers` processes run the dataset's `transform` and your `collate_fn`; without either, no process is started.
    `device_transform` is called with each batch at the very end. `progress` shows a tqdm bar; a string is its title.
    `snapshot_every_n_steps` is accepted for users of torchdata's StatefulDataLoader, and has no effect: the state is
    exact at every step.

    `buffer` is memory that holds samples, read in the order of the file, until their batch needs them: a number of
    bytes, a text such as "8GiB", or a share of the node's memory ("25%", 0.25). 0 means no buffer, None chooses the
    best size. The ranks of a node share it. `epochs` is how many epochs there will be, if you know. `storage` is what
    reading costs: a Storage, or the path of a profile; None takes the profile that `solar probe` stored, or a guess.

    With a DistributedSampler or PlanSampler over several ranks, the ranks of a node share one buffer and read each
    sample once. On several nodes each node reads its home region of the file. `balance` says which rank uses which
    samples of a step: "torch" those that the sampler gives it (the default on one node); "equal" as many as the others,
    from its home region as far as possible (the default on several nodes); "uneven" only those of its home region, with
    `batch.weight`. `exchange` says how samples get to ranks of other nodes: "mpi", "torch" (gloo), or "read" by the
    rank that needs them; with "off" each rank works by itself.

    `device` is where batches come, copied while it computes (docs/gpu.md): "cuda", "cuda:1", "cpu", ...; None leaves
    them where they are made. There floating-point tensors become `dtype`, images and volumes `channels_last`; with
    `static=True` each batch has the addresses of the one before, and overwrites it. `decode="device"` has compressed
    bytes copied, and decoded there. `resident` is memory of the device (bytes, "4GiB", "25%" of what is free) in which
    samples stay from epoch to epoch, which are then neither read nor copied again. `reader` is "auto".
    With on_error="skip" samples that cannot be read are left out, counted in `stats` and logged one by one; their batch
    is smaller, and there is none where no sample of it is left.

    `service` is one that reads for several trainings of this machine (`solar serve`): "auto" for any that serves these
    files, "auto:64GiB" to begin one with so much memory where there is none, the path of its socket, or
    "user:NAME:PATH" for that of another user. None looks at SOLAR_SERVICE. Without one, `buffer` is this training's
    own.

    Over a Dataset of your own, what its `__getitem__` reads by h5py is learned and read ahead by native threads, and
    its calls of h5py are answered from that, with what h5py would give. `adopt=False`, or SOLAR_ADOPT=0, leaves it to
    torch's loader. `buffer` is then the memory for what was read, `ahead` the batches read before they are asked for.
    Where rules say all that samples read, `buffer`, `service` and the ranks of a node are used from the second epoch on
    as for an H5Dataset of these rows.

    >>> from solar import DataLoader, H5Dataset
    >>> loader = DataLoader(H5Dataset("scan.h5", {"x": "/x", "y": "/y"}), batch_size=64, shuffle=True)  # doctest: +SKIP
    >>> for batch in loader:  # doctest: +SKIP
    ...     batch["x"], batch["y"]
    """

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[T],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        ahead: int | None = None,
        device_transform: Callable[[Any], Any] | None = None,
        progress: bool | str = False,
        snapshot_every_n_steps: int | None = 1,
        buffer: Size = None,
        epochs: int | None = None,
        storage: Profile = None,
        exchange: Exchanges = "auto",
        balance: Balance | None = None,
        device: Device = None,
        dtype: torch.dtype | str | None = None,
        channels_last: bool = False,
        static: bool = False,
        decode: Where = "host",
        resident: Size = None,
        reader: str = "auto",
        on_error: OnError = "raise",
        service: str | None = None,
        adopt: bool = True,
    ) -> None:
        _check_given(ahead, generator)
        # torch before 2.6 has no in_order: hand it on only when it says something.
        since_2_6: dict[str, Any] = {} if in_order else {"in_order": False}
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **since_2_6,
        )
        self.in_order = in_order
        self.ahead = ahead
        self.device_transform = device_transform
        self.progress = progress
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.buffer, self.epochs, self.storage = buffer, epochs, storage  # as given: loaders are made anew from these
        self.exchange, self.balance = exchange, balance
        self.device, self.dtype, self.channels_last = device, dtype, channels_last
        self.static, self.decode, self.resident = static, decode, resident
        self.reader = reader
        self._on_device = _device_options(
            device=device, dtype=dtype, channels_last=channels_last, static=static, decode=decode, resident=resident,
            reader=reader,
        )  # fmt: skip
        self.on_error = check_on_error(on_error)
        if isinstance(sampler, PlanSampler) and batch_size is not None:
            # Only PlanBatchSampler can cut an exact tail. torch's __setattr__ forbids this change, so bypass it.
            self.__dict__["batch_sampler"] = PlanBatchSampler(sampler, batch_size, drop_last)
        if is_mixture(dataset) and sampler is None and batch_sampler is None:
            how = "shuffle=True goes" if shuffle else "without a sampler a loader goes"
            raise ValueError(
                f"{how} through all samples of a Mixture once, whatever their shares: give sampler=PlanSampler(mixture)"
            )
        self._sampler_state = SamplerState(self.sampler, self.batch_sampler, generator, dataset, persistent_workers)
        self._sampler_state.in_advance = num_workers * (self.prefetch_factor or 0)
        self._stats = Stats()
        if self._on_device.keeps and buffer is None:
            buffer = 0
        self.service, self.adopt = service, adopt
        self._adopted: AdoptedReads | None = None
        self._plans: AdoptedPlans | None = None  # of what is adopted
        served = None
        if named := service or os.environ.get("SOLAR_SERVICE"):
            from solar.service.served_passes import ServedPasses

            served = ServedPasses(named)
        self._buffered = LoaderBuffer(buffer, epochs, storage, self._stats, exchange, balance, served)
        self._workers = Workers()
        self._live: weakref.WeakSet[Any] = weakref.WeakSet()
        self._engine_logged = False
        self._warn_of_no_effect()
        found = sample_source(dataset) if num_workers > 0 and multiprocessing_context is None else ""
        if not isinstance(found, str) and self._making(found).in_processes:
            self._workers.expect()

    def __repr__(self) -> str:
        """Shows the dataset, and the arguments that differ from their defaults."""
        facts = vars(self)  # some are missing while it is being made
        data, batch = facts.get("dataset"), facts.get("batch_size")
        sampler = facts.get("batch_sampler" if batch is None else "sampler")
        by = "" if sampler is None or type(sampler) is SequentialSampler else f"sampler=<{type(sampler).__name__}>"
        parts = [str(data) if isinstance(data, H5Dataset) else f"<{type(data).__name__}>", f"batch_size={batch}"]
        parts.append("shuffle=True" if type(sampler) is RandomSampler else by)
        for name, default in DEFAULTS.items():
            value = facts.get(name, default)
            if value is not default and value != default:
                parts.append(f"{name}={value!r}" if isinstance(value, PLAIN) else f"{name}=<{type(value).__name__}>")
        return f"{type(self).__name__}({', '.join(filter(None, parts))})"

    def _warn_of_no_effect(self) -> None:
        given = [name for name, nothing in NATIVE_ONLY.items() if getattr(self, name) not in nothing]
        if self._may_adopt():  # whether these have an effect shows later
            given = [name for name in given if name not in ADOPTED or (name == "ahead" and self.num_workers > 0)]
            given = [name for name in given if name not in PLANNED or not self._may_plan()]
        if given and isinstance(found := sample_source(self.dataset), str):
            named = ", ".join(f"{name}={getattr(self, name)!r}" for name in given)
            have = "have" if len(given) > 1 else "has"
            warnings.warn(
                f"{named} {have} no effect: torch's own loader makes these batches, for {found}", stacklevel=3
            )

    def check_worker_number_rationality(self) -> None:
        """Warns, as torch does, of more processes than the machine has cores, where processes are started."""
        found = sample_source(self.dataset)
        if isinstance(found, str) or self._making(found).in_processes:
            super().check_worker_number_rationality()

    # --- iteration ----

    def __iter__(self) -> _BaseDataLoaderIter:
        found = sample_source(self.dataset)
        if not self._engine_logged:
            self._tell_engine(found)
        if isinstance(found, str) and self.balance in ("equal", "uneven"):
            raise PlanError(f"balance={self.balance!r} divides samples by where they lie in files, and {found}")
        if isinstance(found, str) and self.on_error == "skip":
            raise PlanError(f"on_error='skip' is of the native engine, and torch's own reads here: {found}")
        found = (self._planned_reads() or found) if isinstance(found, str) else found
        self._sampler_state.as_arrays = not isinstance(found, str)
        iterator = super().__iter__() if isinstance(found, str) else EpochIterator(self, found)
        self._live.add(iterator)
        return iterator

    def _get_iterator(self) -> _BaseDataLoaderIter:
        from solar.loader.torch_iterators import SingleProcessIter, WorkersIter  # of data sets that torch's own reads

        if self.num_workers == 0:
            return SingleProcessIter(self)
        self.check_worker_number_rationality()
        return WorkersIter(self)

    def _may_adopt(self) -> bool:
        """Returns whether reads of the Dataset may be learned. Whether they can be shows only when it reads."""
        if not self.adopt or os.environ.get("SOLAR_ADOPT") == "0":
            return False
        return self._dataset_kind == _DatasetKind.Map and not isinstance(self.dataset, (*NEVER_READ, H5Dataset))

    def _may_plan(self) -> bool:
        """Returns whether what the Dataset reads may be planned: the user gave a buffer or a service for it."""
        options = self._buffered.options
        asked_for = bool(options.nbytes) or options.service is not None
        return asked_for and self.num_workers == 0 and self._may_adopt()

    def _planned_reads(self) -> SampleSource | None:
        """Returns what a plan has for a user's Dataset in this epoch; None if its reads are not planned."""
        if self._adopted is None or self._adopted.process != os.getpid() or not self._may_plan():
            return None
        if self._plans is None:
            from solar.loader.adopt_plans import AdoptedPlans  # not before a Dataset was adopted

            given = [name for name in PLANNED if getattr(self, name) not in NATIVE_ONLY[name]]
            self._plans = AdoptedPlans(self._adopted, self._buffered, given)
        return self._plans.begin_epoch(self)

    def _adopted_pass(self, fetcher: Any, position: EpochPosition) -> AdoptedPass | None:
        """Returns what reads ahead for a user's Dataset in this epoch; None if torch reads it alone."""
        if not self._may_adopt():
            return None
        from solar.loader.adopt import AdoptedPass, AdoptedReads, batches_known  # not for an H5Dataset

        adopted = self._adopted
        if adopted is None or adopted.process != os.getpid():
            asked_for = [name for name in ADOPTED if getattr(self, name) not in NATIVE_ONLY[name]]
            buffer = requested_bytes(self.buffer)
            adopted = AdoptedReads(self.dataset, buffer, asked_for, may_be_planned=self._may_plan())
            self._adopted = adopted
            self._plans = None
        if adopted.left_alone:
            return None
        return AdoptedPass(adopted, fetcher, *batches_known(self._sampler_state, position, self.ahead))

    def _adopting_workers(self) -> Callable[[Any], Callable[[int], None]] | None:
        """Installs an init function in torch's workers that adopts the Dataset in each of them."""
        if not self._may_adopt():
            return None
        from solar.loader.adopt import AdoptInWorker

        return partial(AdoptInWorker, buffer=requested_bytes(self.buffer), workers=self.num_workers)

    @property
    def _index_sampler(self) -> Any:
        """The source of indices for torch's iterators: the samplers, wrapped so that the position is remembered."""
        return self._sampler_state

    def _tell_engine(self, found: SampleSource | str) -> None:
        self._engine_logged = True
        if isinstance(found, str):
            adopting = (
                ", each of which reads ahead what it asks h5py for" if self.num_workers and self._may_adopt() else ""
            )
            log.info("torch's own engine with num_workers=%d%s: %s", self.num_workers, adopting, found)
            return
        log.info(
            "native engine: %s, %d threads, %s batches ahead%s",
            " + ".join(map(str, found.datasets[:3])) + (" + ..." if len(found.datasets) > 3 else ""),
            own_cores(),
            self.ahead or f"up to {found.batches_ahead}",
            "" if found.first.transform is None else f", transform in {self._place_of_transform(found.first)}",
        )

    def _making(self, source: SampleSource) -> BatchMaker:
        first, own = source.first, getattr(source, "making", None)
        if own is not None:  # of an adopted Dataset
            made: BatchMaker = own
            return made
        return BatchMaker(first.transform, first.thread_safe, self.collate_fn, self._auto_collation)

    def _place_of_transform(self, dataset: H5Dataset) -> str:
        if dataset.thread_safe:
            return f"{self.num_workers or own_cores()} threads"
        return f"{self.num_workers} processes" if self.num_workers else "this thread (num_workers=0)"

    def _progress_bar(self) -> Any:
        if not self.progress:
            return None
        try:
            total = len(self)
        except TypeError:
            total = None
        from solar.loader.metrics import progress as progress_bar

        return progress_bar(total, self.progress if isinstance(self.progress, str) else "")

    # --- position ----

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the sampler. A loaded position is kept if it is of this epoch, else forgotten."""
        self._sampler_state.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Returns the newest iterator's position as small JSON. It counts batches handed out, not those read ahead.

        With a PlanSampler or DistributedSampler it is the same on all ranks, and any number of ranks can resume from
        it.
        """
        return self._sampler_state.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes the next iteration at this state. Raises PlanError if it is of other data or order."""
        self._sampler_state.load(state)
        if self._iterator is not None:  # torch's persistent workers may be busy with another epoch
            self._iterator = None

    # --- what it did ----

    def stats(self) -> dict[str, Any]:
        """Counts since the loader was made: samples, bytes, requests, memory, and seconds waited by cause."""
        return self._stats.as_dict()

    def report(self) -> Report:
        """Returns the counts as text: how long your training waited for data, why, and what would help.

        A notebook shows it with a picture: what the time of each epoch went to.
        """
        from solar.loader.report import Report, stage_advice

        found = sample_source(self.dataset) if self._engine_logged else ""
        buffer = "" if self._on_device.keeps else self._buffered.advice(**self._order_facts())
        if isinstance(found, str):
            said = self._stats.report(buffer=buffer, counts=self._sampler_state.counts())
            more = "" if self._adopted is None else "\n".join((self._adopted.report(), self._buffered.held())).strip()
            return Report.of(f"{said}\n{more}", said.epochs) if more else said
        share, counts = self._buffered.share(found), self._sampler_state.counts()
        foreseen = (self._buffered.served, self._buffered.foreseen)
        said = self._stats.report(found.filters(), found.samples_per_chunk(), share, buffer, counts, *foreseen)
        stage = stage_advice(self._stats.as_dict(), found.decoded_nbytes), found.staging()
        return Report.of("\n".join(filter(None, (said, self._buffered.held(), *stage))), said.epochs)

    def _order_facts(self) -> dict[str, Any]:
        """Returns whether the order is an exact shuffle, and the window of a mixed one."""
        sampler = self.sampler
        by = getattr(sampler, "by", None)
        if isinstance(sampler, PlanSampler) and by is not None:
            return {"mixed": by.facts["window"] if by.kind.startswith("mixed") else 0}
        drawn = isinstance(sampler, RandomSampler) and not sampler.replacement
        return {"shuffled": drawn or getattr(sampler, "shuffle", False) is True}

    def sources(self) -> list[str]:
        """Returns the source of each sample of the batch handed out last, in its order; the dataset is a solar.Mixture.

        >>> for batch in loader:  # doctest: +SKIP
        ...     loader.sources()
        ['real', 'real', 'simulated', 'real']
        """
        if not is_mixture(self.dataset):
            raise TypeError(f"sources() is of a Mixture, and the dataset is {type(self.dataset).__name__}")
        return self.dataset.sources(self._sampler_state.taken)

    # --- the end ----

    def close(self) -> None:
        """Ends all iterators with their threads and processes. A new iterator starts its own."""
        for iterator in list(self._live):
            close = getattr(iterator, "close", None) or getattr(iterator, "_shutdown_workers", None)
            if close is not None:
                close()
        self._iterator = None
        if self._adopted is not None:
            self._adopted.close()
        self._buffered.close()
        self._workers.close()
        self._on_device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_live", "_adopted", "_plans")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _live=weakref.WeakSet(), _adopted=None, _plans=None)


def _check_given(ahead: Any, generator: Any) -> None:
    """Raises TypeError or ValueError for impossible values."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator={generator!r}: it is a torch.Generator, such as torch.Generator().manual_seed(3), or None"
        )
    try:
        batches = 1 if ahead is None else operator.index(ahead)
    except TypeError:
        raise TypeError(f"ahead={ahead!r}: it is a number of batches, or None") from None
    if batches < 1:
        raise ValueError(f"ahead={ahead}: at least one batch must be read at a time")


def check_on_error(on_error: Any) -> OnError:
    """Returns the option on_error. Raises ValueError unless it is a known word."""
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error={on_error!r}: it is 'raise' or 'skip'")
    word: OnError = on_error
    return word
