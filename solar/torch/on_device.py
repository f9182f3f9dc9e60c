"""OnDevice: what a loader is to bring to a device, and as what; and the views of its datasets that are read for it."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch

from solar.errors import PlanError
from solar.io import machine
from solar.io.encoded import Encoded, encoded
from solar.io.field import Field
from solar.torch.beneath import Beneath, h5_beneath
from solar.torch.budget import Size, in_bytes
from solar.torch.dataset import H5Dataset
from solar.torch.decoding import Decoding
from solar.torch.finish import Finish, by_device, exact
from solar.torch.landing import Form, Landing, Static
from solar.torch.making import Making
from solar.torch.pending import leaves, mapped
from solar.torch.spared import Parts, Spared, parted, stays
from solar.torch.stats import Stats
from solar.torch.streams import Streams, device_of, named, streams_of
from solar.torch.tier import Tier, asked
from solar.values import Layout

if TYPE_CHECKING:
    from solar.torch.loader import DataLoader

Device = str | int | torch.device | None
Where = Literal["host", "device"]
log = logging.getLogger("solar")


class OnDevice:
    """What a loader was asked to do with its batches on a device; nothing, where `device` is None.

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
    ) -> None:
        wanted = {"dtype": dtype is not None, "channels_last": channels_last, "static": static}
        wanted |= {"decode": decode == "device", "resident": resident is not None}
        if decode not in ("host", "device"):
            raise ValueError(f"decode={decode!r}: our codec is decoded on the 'host' or on the 'device'")
        if device is None and any(wanted.values()):
            first = next(name for name, given in wanted.items() if given)
            raise ValueError(f"{first}= is for batches on a device: give device=, which may be 'cpu'")
        if device is not None:
            named(device)  # which of several it is, and whether it is there, is asked when it is used
        self._device, self._channels_last, self._decode = device, channels_last, decode
        # Of how much memory it is a share is asked when it is taken.
        self._resident = resident if resident is not None and in_bytes(resident, machine.PLENTY, "resident") else None
        self._dtype = _floating(dtype)
        self._static = Static() if static else None
        self._streams: tuple[torch.device, Streams | None] | None = None
        self._views: dict[Any, tuple[list[H5Dataset], list[H5Dataset], Any]] = {}
        self._tier: tuple[list[H5Dataset], Tier, Parts] | None = None  # of which views it keeps samples

    @property
    def keeps(self) -> bool:
        """Whether samples are to stay on the device."""
        return self._resident is not None

    def landing(self, loader: DataLoader[Any]) -> Landing | None:
        """The landing of an iterator of torch's; None without a device."""
        if self._device is None:
            return None
        if self._decode == "device":
            raise PlanError(
                f"decode='device' is for an H5Dataset, and {h5_beneath(loader.dataset)}: give decode='host'"
            )
        if self._resident is not None:
            raise PlanError(
                f"resident={self._resident!r} is for an H5Dataset, and {h5_beneath(loader.dataset)}: leave it out"
            )
        form = self._form(self._device)
        return Landing(form, self._streams_of(form.device), loader._stats)

    def native_landing(
        self, loader: DataLoader[Any], beneath: Beneath, making: Making
    ) -> tuple[Landing | None, Beneath]:
        """The landing of an iterator of ours, None without a device; and what is to be read for it."""
        if self._device is None:
            return None, beneath
        form = self._form(self._device)
        streams = self._streams_of(form.device)
        if self._resident is not None:
            self._check_staying(making)
        if making.in_python:
            if self._decode == "device":
                raise PlanError(
                    "decode='device', but your transform or collate_fn is to get the samples on the host: give "
                    "decode='host', or do that in device_transform"
                )
            return Landing(form, streams, loader._stats, None, loader.ahead), beneath
        datasets, finishes = self._viewed(beneath.datasets, form.device, making.auto_collation)
        made = Beneath(datasets, beneath.locate)
        if self._resident is None:
            return Landing(form, streams, loader._stats, finishes, loader.ahead), made
        tier, parts = self._tier_of(datasets, form.device, loader._stats)
        spared = Spared(datasets, beneath.locate, parts, tier)
        return Landing(form, streams, loader._stats, finishes, loader.ahead, tier), spared

    def _check_staying(self, making: Making) -> None:
        if making.in_python:
            raise PlanError(
                f"resident={self._resident!r}, but your transform or collate_fn is to get the samples on the host: "
                "leave resident out, or do that in device_transform"
            )
        if not making.auto_collation:
            raise PlanError(f"resident={self._resident!r} is for batches, and batch_size=None has none")

    def _tier_of(self, datasets: list[H5Dataset], device: torch.device, stats: Stats) -> tuple[Tier, Parts]:
        """The tier of these views, which keeps what iterators before have put there."""
        if self._tier is None or self._tier[0] is not datasets or self._tier[1].process != os.getpid():
            self._tier = None  # before its successor is made
            tier = Tier(sum(map(len, datasets)), asked(self._resident, device), device, stats)
            self._tier = (datasets, tier, parted(datasets))
        return self._tier[1:]

    def close(self) -> None:
        """Lets go of what stays on the device."""
        if self._tier is not None and self._tier[1].process == os.getpid():
            self._tier[1].close()
        self._tier = None

    def _form(self, device: str | int | torch.device) -> Form:
        return Form(device_of(device), self._dtype, self._channels_last, self._static)

    def _streams_of(self, device: torch.device) -> Streams | None:
        """The device's streams, of this loader: what is made once there is in the memory of the same stream."""
        if self._streams is None or self._streams[0] != device:
            self._streams, self._views = (device, streams_of(device)), {}
        return self._streams[1]

    def _viewed(self, datasets: list[H5Dataset], device: torch.device, batched: bool) -> tuple[list[H5Dataset], Any]:
        key = (device, *map(id, datasets), batched)
        if key not in self._views:
            streams = self._streams_of(device)
            with nullcontext() if streams is None else streams.beside():
                views, finishes = self._views_of(datasets, device, batched)
            self._views = {key: (datasets, views, finishes)}  # the datasets, too: nothing else has their ids then
        return self._views[key][1:]

    def _views_of(self, datasets: list[H5Dataset], device: torch.device, batched: bool) -> tuple[list[H5Dataset], Any]:
        """The datasets as they are read for the device, and what is then made of each field there."""
        fields, by_leaf = leaves(datasets[0].fields), [leaves(one.layouts) for one in datasets]
        refused: list[str] = []
        layouts: list[list[Layout]] = []
        finishes: list[Finish | None] = []
        for field, *ours in zip(fields, *by_leaf, strict=True):
            views = "" if self._decode == "host" else _encoded(field, ours)
            finish = None
            if not isinstance(views, str):
                decode = Decoding(views[0], device, self._straight(field, views[0]))
                finish = Finish(field, ours[0], device, decode, single=not batched)
            elif self._streams_of(device) is not None and by_device(field, ours[0]):
                finish = Finish(field, ours[0], device, single=not batched)
            layouts.append(ours if isinstance(views, str) else [view.layout for view in views])
            finishes.append(finish)
            refused += [views] if isinstance(views, str) else []
        if self._decode == "device" and len(refused) == len(fields):
            raise PlanError(f"decode='device', and none of the fields can be: {refused[0]}. Give decode='host'")
        log.log(logging.INFO if any(refused) else logging.DEBUG, "decoded on the host: %s", "; ".join(refused))
        left = [field if finish is None else None for field, finish in zip(fields, finishes, strict=True)]
        if self._resident is not None:  # what is finished is what stays
            finishes = [
                Finish(None, ours[0], device) if finish is None and stays(ours[0]) else finish
                for finish, ours in zip(finishes, layouts, strict=True)
            ]
        made = [_view(one, [each[k] for each in layouts], left) for k, one in enumerate(datasets)]
        waiting = iter(finishes)
        return made, mapped(datasets[0].layouts, lambda _: next(waiting))

    def _straight(self, field: Field | None, view: Encoded) -> torch.dtype | None:
        """The type that is decoded to at once, where it is all that is asked for."""
        plain = field is None or (field.dtype is None and field.mean is None and field.std is None)
        halves = (torch.float16, torch.bfloat16)
        return self._dtype if plain and view.dtype == "f4" and self._dtype in halves else None

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__, _views={}, _streams=None, _tier=None)


def _encoded(field: Field | None, layouts: Sequence[Layout]) -> list[Encoded] | str:
    """The encoded views of a field's Layouts; why it is decoded on the host where it has none."""
    if exact(field, layouts[0]):
        return encoded(layouts)
    return f"{layouts[0].name} comes as {field}, which a device does not make to the same bits"


def _view(dataset: H5Dataset, layouts: list[Layout], fields: list[Field | None]) -> H5Dataset:
    made = copy.copy(dataset)  # which has opened nothing yet
    of_layouts, of_fields = iter(layouts), iter(fields)
    made.layouts = mapped(dataset.layouts, lambda _: next(of_layouts))
    made.fields = mapped(dataset.layouts, lambda _: next(of_fields))
    return made


def _floating(given: torch.dtype | str | None) -> torch.dtype | None:
    """torch's dtype, also by its name. Of floating point: other tensors of a batch stay as they are."""
    dtype = getattr(torch, given.removeprefix("torch."), None) if isinstance(given, str) else given
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(f"dtype={given!r}: batches' floating-point tensors can be made of another such type only")
    if dtype is None and given is not None:
        raise ValueError(f"dtype={given!r} is none of torch's; 'bfloat16' is one")
    return dtype
