"""DeviceOptions: what a loader copies to a device, and in which form."""

from __future__ import annotations

import copy
import logging
import os
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import torch

from solar.buffer.buffer_size import Size, in_bytes
from solar.device.cache import DeviceCache, resident_bytes
from solar.device.copier import DeviceCopier, DeviceForm, Static
from solar.device.decoding import Decoding
from solar.device.finish import DeviceFinish, by_device, is_exact
from solar.device.resident import Parts, ResidentSource, parted, stays
from solar.device.ring import PinnedPool, Streams, device_of, named_device, streams_of
from solar.errors import PlanError
from solar.io.reading.encoded import Encoded, encoded_views
from solar.io.reading.near import read_near
from solar.io.system import memory as machine
from solar.loader.batch import BatchMaker
from solar.loader.stats import Stats
from solar.samples.boxes import Boxes
from solar.samples.constants import arranged_with
from solar.samples.dataset import H5Dataset
from solar.samples.field import Field
from solar.samples.pending import leaves, mapped
from solar.samples.ragged import RaggedRows
from solar.samples.row_windows import RowWindows
from solar.samples.source import SampleSource, sample_source
from solar.values import BATCHES_AHEAD, Layout

Device = str | int | torch.device | None
Where = Literal["host", "device"]
NO_GDS = "GPUDirect Storage is no longer offered. Leave reader= out: samples are read to pinned memory and copied ahead"
log = logging.getLogger("solar")


class DeviceOptions:
    """What a loader does with its batches on a device; nothing if `device` is None.

    The views of the datasets are made once, and so opened once.
    """

    def __init__(
        self,
        device: Device,
        dtype: torch.dtype | str | None,
        channels_last: bool,
        static: bool,
        decode: Where,
        resident: Size = None,
        reader: str = "auto",
    ) -> None:
        wanted = {"dtype": dtype is not None, "channels_last": channels_last, "static": static}
        wanted |= {"decode": decode == "device", "resident": resident is not None}
        if reader != "auto":
            raise ValueError(f"reader={reader!r}: {NO_GDS if reader == 'gds' else 'leave it out'}")
        if decode not in ("host", "device"):
            raise ValueError(f"decode={decode!r}: our codec is decoded on the 'host' or on the 'device'")
        if device is None and any(wanted.values()):
            first = next(name for name, given in wanted.items() if given)
            raise ValueError(f"{first}= is for batches on a device: give device=, which may be 'cpu'")
        if device is not None:
            named_device(device)  # which of several it is, and whether it is there, is asked when it is used
        self._device, self._channels_last, self._decode = device, channels_last, decode
        # Of how much memory it is a share is asked when it is taken.
        self._resident = resident if resident is not None and in_bytes(resident, machine.PLENTY, "resident") else None
        self._dtype = floating_dtype(dtype)
        self._static = Static() if static else None
        self._streams: tuple[torch.device, Streams | None] | None = None
        self._adopted: PinnedPool | None = None
        self._views: dict[Any, tuple[list[H5Dataset], list[H5Dataset], Any]] = {}
        self._tier: tuple[list[H5Dataset], DeviceCache, Parts] | None = None  # of which views it keeps samples

    @property
    def keeps(self) -> bool:
        """Whether samples stay on the device. Then only a buffer that was asked for is used."""
        return self._resident is not None

    def landing(self, dataset: Any, stats: Stats) -> DeviceCopier | None:
        """Returns the copier for an iterator of torch's; None without a device."""
        if self._device is None:
            return None
        if self._decode == "device":
            raise PlanError(f"decode='device' is for an H5Dataset, and {sample_source(dataset)}: give decode='host'")
        if self._resident is not None:
            raise PlanError(
                f"resident={self._resident!r} is for an H5Dataset, and {sample_source(dataset)}: leave it out"
            )
        form = self._form(self._device)
        return DeviceCopier(form, self._streams_of(form.device), self._adopted, stats)

    def native_landing(
        self, source: SampleSource, making: BatchMaker, stats: Stats, ahead: int | None
    ) -> tuple[DeviceCopier | None, SampleSource]:
        """Returns the copier for an iterator of ours, None without a device; and the source to read for it."""
        if self._device is None:
            return None, source
        form = self._form(self._device)
        streams = self._streams_of(form.device)
        if self._resident is not None:
            self._check_staying(making, source)
        if source.ragged and (self._resident is not None or self._static is not None):
            word = "static=True" if self._resident is None else f"resident={self._resident!r}"
            raise PlanError(f"{word} is for samples of one size, and {source.first} has others: leave it out")
        if making.in_python:
            if self._decode == "device":
                raise PlanError(
                    "decode='device', but your transform or collate_fn is to get the samples on the host: give "
                    "decode='host', or do that in device_transform"
                )
            return DeviceCopier(form, streams, self._adopted, stats, None, ahead or BATCHES_AHEAD), source
        datasets, finishes = self._view_fields(source.datasets, form.device, making.auto_collation)
        tier, parts = None, None
        if self._resident is not None:
            tier, parts = self._tier_of(datasets, form.device, stats)
        landing = DeviceCopier(form, streams, self._adopted, stats, finishes, ahead or BATCHES_AHEAD, tier)
        if tier is None or parts is None:
            return landing, SampleSource(datasets, source.locate, plain=source.plain)
        return landing, ResidentSource(datasets, source.locate, parts, tier)

    def _check_staying(self, making: BatchMaker, source: SampleSource) -> None:
        if any(dataset.draws for dataset in source.datasets):
            raise PlanError(
                f"resident={self._resident!r}, but each epoch has other samples, at places drawn anew: leave it out"
            )
        if making.in_python:
            raise PlanError(
                f"resident={self._resident!r}, but your transform or collate_fn is to get the samples on the host: "
                "leave resident out, or do that in device_transform"
            )
        if not making.auto_collation:
            raise PlanError(f"resident={self._resident!r} is for batches, and batch_size=None has none")

    def _tier_of(self, datasets: list[H5Dataset], device: torch.device, stats: Stats) -> tuple[DeviceCache, Parts]:
        """Returns the cache of these views, with what earlier iterators put there."""
        if self._tier is None or self._tier[0] is not datasets or self._tier[1].process != os.getpid():
            self._tier = None  # before its successor is made
            tier = DeviceCache(sum(map(len, datasets)), resident_bytes(self._resident, device), device, stats)
            self._tier = (datasets, tier, parted(datasets))
        return self._tier[1:]

    def close(self) -> None:
        """Frees what stays on the device."""
        if self._tier is not None and self._tier[1].process == os.getpid():
            self._tier[1].close()
        self._tier = None
        if self._adopted is not None:
            self._adopted.close()

    def _form(self, device: str | int | torch.device) -> DeviceForm:
        return DeviceForm(device_of(device), self._dtype, self._channels_last, self._static)

    def _streams_of(self, device: torch.device) -> Streams | None:
        """Returns this loader's streams of the device: memory is reused only within one stream."""
        if self._streams is None or self._streams[0] != device:
            streams = streams_of(device)
            self._streams, self._views = (device, streams), {}
            self._adopted = None if streams is None else PinnedPool(streams)
            if streams is not None and (address := streams.address()) is not None:
                read_near(address)
        return self._streams[1]

    def _view_fields(
        self, datasets: list[H5Dataset], device: torch.device, batched: bool
    ) -> tuple[list[H5Dataset], Any]:
        key = (device, *map(id, datasets), batched)
        if key not in self._views:
            streams = self._streams_of(device)
            with nullcontext() if streams is None else streams.beside():
                views, finishes = self._views_of(datasets, device, batched)
            self._views = {key: (datasets, views, finishes)}  # the datasets, too: nothing else has their ids then
        return self._views[key][1:]

    def _views_of(self, datasets: list[H5Dataset], device: torch.device, batched: bool) -> tuple[list[H5Dataset], Any]:
        """Returns the datasets as they are read for the device, and what is then done with each field there."""
        fields, by_leaf = leaves(datasets[0].fields), [leaves(one.layouts) for one in datasets]
        kinds = {RowWindows: "windows", Boxes: "boxes", RaggedRows: "samples of unequal length"}
        several = [kinds.get(type(own), "") for own in leaves(datasets[0].extents)]
        found = [
            self._see_layouts(field, ours, device, batched) if not kind else self._put_together(ours, kind)
            for field, kind, *ours in zip(fields, several, *by_leaf, strict=True)
        ]
        layouts, finishes = [one.layouts for one in found], [one.finish for one in found]
        self._tell([one.refused for one in found])
        left = [field if finish is None else None for field, finish in zip(fields, finishes, strict=True)]
        if self._resident is not None:  # what is finished is what stays
            finishes = [
                DeviceFinish(None, ours[0], device) if finish is None and stays(ours[0]) else finish
                for finish, ours in zip(finishes, layouts, strict=True)
            ]
        made = [_view(one, [each[k] for each in layouts], left) for k, one in enumerate(datasets)]
        return made, arranged_with(datasets[0].constants, datasets[0].layouts, iter(finishes))

    def _see_layouts(self, field: Field | None, layouts: list[Layout], device: torch.device, batched: bool) -> _Seen:
        """Returns how one field is read for the device, and finished there."""
        finish, refused = partial(DeviceFinish, field, layouts[0], device, single=not batched), ""
        if self._decode == "device":
            inexact = f"{layouts[0].name} comes as {field}, which a device does not make to the same bits"
            views = encoded_views(layouts) if is_exact(field, layouts[0]) else inexact
            if not isinstance(views, str):
                decode = Decoding(views[0], device, self._straight(field, views[0]))
                return _Seen([view.layout for view in views], finish(decode))
            refused = views
        there = self._streams_of(device) is not None and by_device(field, layouts[0])
        return _Seen(layouts, finish() if there else None, refused)

    def _put_together(self, layouts: list[Layout], kind: str) -> _Seen:
        """Returns finishes for fields that the host assembles from rows, and then converts."""
        refused = f"{layouts[0].name} comes in {kind}, whose rows the host puts together"
        return _Seen(layouts, None, refused if self._decode == "device" else "")

    def _tell(self, refused: list[str]) -> None:
        """Logs which fields the host decodes nevertheless. Raises PlanError if it decodes all of them."""
        if all(refused):
            raise PlanError(f"decode='device', and none of the fields can be: {refused[0]}. Give decode='host'")
        if any(refused):
            log.info("decode='device', but on the host: %s", "; ".join(filter(None, refused)))

    def _straight(self, field: Field | None, view: Encoded) -> torch.dtype | None:
        """Returns the type to decode to at once, if a Field does nothing else."""
        plain = field is None or (field.dtype is None and field.mean is None and field.std is None)
        halves = (torch.float16, torch.bfloat16)
        return self._dtype if plain and view.dtype == "f4" and self._dtype in halves else None

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__, _views={}, _streams=None, _adopted=None, _tier=None)


class _Seen(NamedTuple):
    """One field: what is read of it, and what the device then makes of that."""

    layouts: list[Layout]
    finish: DeviceFinish | None = None
    refused: str = ""  # why not as was asked


def _view(dataset: H5Dataset, layouts: list[Layout], fields: list[Field | None]) -> H5Dataset:
    made = copy.copy(dataset)  # which has opened nothing yet
    of_layouts, of_fields = iter(layouts), iter(fields)
    made.layouts = mapped(dataset.layouts, lambda _: next(of_layouts))
    made.fields = mapped(dataset.layouts, lambda _: next(of_fields))
    return made


def floating_dtype(given: torch.dtype | str | None) -> torch.dtype | None:
    """Returns torch's floating-point dtype, also by its name. Other tensors of a batch keep their type."""
    dtype = getattr(torch, given.removeprefix("torch."), None) if isinstance(given, str) else given
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype={given!r}: batches' floating-point tensors can be made of another such type only")
    if dtype is None and given is not None:
        raise ValueError(f"dtype={given!r} is none of torch's; 'bfloat16' is one")
    return dtype
