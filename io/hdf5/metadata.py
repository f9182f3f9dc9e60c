"""Lets one rank read metadata for all, so that a thousand ranks scan the index of a file once."""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solar import _native, errors
from solar.errors import PlanError, SolarError
from solar.io.channels.bulk import cast, mail
from solar.io.channels.meeting import Peers
from solar.io.hdf5 import datatype
from solar.values import Filter, Form, Layout

IN_LETTER = 1 << 16  # bytes sent in the letter itself; more are passed on from rank to rank
METADATA_SECONDS = 3600.0  # the longest that rank 0 may read; if it dies, the others notice at once
METADATA_PARTING = 5.0  # seconds that an interrupted rank 0 waits for the others

Section = NDArray[Any]


def read_together(
    these: Peers, what: str, same: Mapping[str, Any], read: Callable[[], Sequence[Layout]]
) -> list[Layout]:
    """Returns the result of `read` at rank 0, on all ranks. An error on rank 0 is raised on all.

    `what` says in messages what is read; `same` are the arguments that must be equal on all ranks.
    """
    these.meet(f"the metadata of {what}", same, {}, {})
    if these.rank:
        found = these.meet(f"what is in {what}", {}, {}, {}, METADATA_SECONDS).answer
        if "error" in found:
            raise _rebuilt(*found["error"])
        return unpacked(receive_sections(these, what, found))
    try:
        layouts = list(read())
        sections = pack_layouts(layouts)
    except BaseException as error:
        limit = METADATA_SECONDS if isinstance(error, Exception) else METADATA_PARTING
        these.meet(f"what is in {what}", {}, {}, {}, limit, {"error": error_as_json(error)})
        raise
    letter: dict[str, Any] = {
        "sections": [(section.dtype.str, len(section)) for section in sections],
        "sums": section_checksums(sections),
    }
    small = sum(section.nbytes for section in sections) <= IN_LETTER
    if small:
        letter["texts"] = [base64.b64encode(section.tobytes()).decode() for section in sections]
    these.meet(f"what is in {what}", {}, {}, {}, METADATA_SECONDS, letter)
    if not small:
        _cast(these, what, sections)
    return layouts


def receive_sections(these: Peers, what: str, letter: dict[str, Any]) -> list[Section]:
    if "texts" in letter:
        kinds = [np.dtype(kind) for kind, _ in letter["sections"]]
        texts = [base64.b64decode(text) for text in letter["texts"]]
        sections: list[Section] = [np.frombuffer(text, kind) for text, kind in zip(texts, kinds, strict=True)]
    else:
        sections = [np.empty(length, np.dtype(kind)) for kind, length in letter["sections"]]
        _cast(these, what, sections)
    if [(section.dtype.str, len(section)) for section in sections] != [tuple(one) for one in letter["sections"]]:
        raise PlanError(f"{what}: of its metadata rank {these.rank} has received another number of bytes than was sent")
    if section_checksums(sections) != letter["sums"]:
        raise PlanError(f"{what}: its metadata came to rank {these.rank} damaged: the checksums differ")
    for section in sections:
        section.flags.writeable = False
    return sections


def _cast(these: Peers, what: str, sections: list[Section]) -> None:
    carried_by = mail(these.by, these.check)
    cast(carried_by, sections, f"the metadata of {what}", these.check)
    carried_by.free()


def section_checksums(sections: Sequence[Section]) -> list[int]:
    """Returns the CRC-32 of each section; zlib releases the GIL."""
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda section: zlib.crc32(section) if len(section) else 0, sections))


# --- Layouts as arrays, and back ----


def pack_layouts(layouts: Sequence[Layout]) -> list[Section]:
    """Returns the Layouts as one-dimensional arrays: first JSON, then their arrays."""
    paths = list(dict.fromkeys(of for layout in layouts for of in (layout.paths, layout.asked) if of))
    number = {of: i for i, of in enumerate(paths)}
    arrays: list[Section] = []
    heads = []
    for layout in layouts:
        head: dict[str, Any] = {}
        for field in dataclasses.fields(layout):
            value = getattr(layout, field.name)
            if isinstance(value, np.ndarray):
                arrays.append(np.ascontiguousarray(value))
            else:
                head[field.name] = value
        head["paths"] = number[layout.paths]
        head["asked"] = number.get(layout.asked, -1)
        head["dtype"] = _message(layout).hex()
        head["forms"] = [dataclasses.asdict(form) | {"fill": form.fill.hex()} for form in layout.forms]
        heads.append(head)
    text = json.dumps({"paths": paths, "layouts": heads})
    return [np.frombuffer(text.encode(), np.uint8), *arrays]


def unpacked(sections: Sequence[Section]) -> list[Layout]:
    """Returns the Layouts that `pack_layouts` turned into these arrays. They share the arrays' memory."""
    head = json.loads(sections[0].tobytes())
    arrays = iter(sections[1:])
    layouts = []
    for facts in head["layouts"]:
        for field in dataclasses.fields(Layout):
            if field.name not in facts:
                facts[field.name] = next(arrays)
        facts["paths"] = tuple(head["paths"][facts["paths"]])
        facts["asked"] = tuple(head["paths"][facts["asked"]]) if facts["asked"] >= 0 else ()
        facts["names"] = tuple(facts["names"])
        # A copy of the file on this machine, of the same size and time, is as good as rank 0's.
        facts["file_inode"], facts["file_ctime_ns"] = np.empty(0, np.uint64), np.empty(0, np.int64)
        facts["shape"] = tuple(facts["shape"])
        message = bytes.fromhex(facts["dtype"])
        facts["dtype"] = datatype.decode(message)[0] if message else np.dtype("V0")
        facts["forms"] = tuple(map(form_of_facts, facts["forms"]))
        layouts.append(Layout(**facts))
    return layouts


def _message(layout: Layout) -> bytes:
    """Returns the dtype as HDF5's message: numpy cannot express all of h5py's. Empty for one of no bytes."""
    if layout.dtype == np.dtype("V0"):
        return b""
    dataset = _native.read_metadata(layout.paths[0], layout.name_in(0))["datasets"][0]
    message = dataset["datatype"]
    if datatype.decode(message)[0] != layout.dtype:
        raise errors.LayoutError(f"{layout.paths[0]}: {layout.title} changed its type while it was inspected")
    return message


def form_of_facts(facts: dict[str, Any]) -> Form:
    filters = tuple(Filter(one["id"], one["flags"], tuple(one["values"])) for one in facts["filters"])
    return Form(tuple(facts["chunk"]), filters, bytes.fromhex(facts["fill"]))


# --- an error of rank 0 ----

_ERROR_KINDS = {
    kind.__name__: kind
    for kind in (*vars(errors).values(), ValueError, TypeError, MemoryError)
    if isinstance(kind, type)
}


def error_as_json(error: BaseException) -> tuple[str, list[Any]]:
    """Returns an error as JSON: the name of its type, and the arguments to make it again."""
    if not isinstance(error, Exception):
        return "PlanError", [f"rank 0, which reads the metadata for all, was interrupted: {type(error).__name__}"]
    if type(error).__name__ not in _ERROR_KINDS:
        return "SolarError", [f"rank 0, which reads the metadata for all: {type(error).__name__}: {error}"]
    if isinstance(error, OSError) and error.strerror is not None:
        return type(error).__name__, [error.errno, error.strerror, error.filename]
    return type(error).__name__, [str(error)]


def _rebuilt(kind: str, args: list[Any]) -> Exception:
    error: Exception = _ERROR_KINDS.get(kind, SolarError)(*args)
    error.add_note("(rank 0 read the metadata for all ranks)")
    return error
