"""Programs drawn by their seed: what is in the files, how it is read, and what becomes of the loader; as a script."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

HEAD = """
from pathlib import Path

import hdf5plugin
import numpy as np
import torch

import solar
from solar import CSR, Crops, Field, H5Dataset, PlanSampler, Ragged, Windows
from solar.values import Storage
from tests.programs.oracle import *
from tests.programs.pair import *
"""
DISK = "Storage(latency=1e-3, bandwidth=1e8, iops=500)"
CHUNKED = {
    "chunks": "",
    "growing": "maxshape={grow}",
    "gzip": "compression='gzip'",
    "shuffled": "compression='gzip', shuffle=True",
    "checked": "fletcher32=True",
    "all": "compression='gzip', shuffle=True, fletcher32=True",
    "lzf": "compression='lzf', shuffle=True",
    "zstd": "**hdf5plugin.Zstd()",
    "lz4": "**hdf5plugin.LZ4()",
    "bitshuffle": "**hdf5plugin.Bitshuffle(cname='lz4')",
    "blosc": "**hdf5plugin.Blosc()",
    "blosc2": "**hdf5plugin.Blosc2()",
    "bzip2": "**hdf5plugin.BZip2()",  # libhdf5 decodes it
    "partly": "how='partly'",
    "partly gzip": "how='partly', compression='gzip'",
    "scale-offset": "scaleoffset=0",
    "early": "how='early'",
    "nbit": "how='nbit'",
}
WHOLE = {
    "contiguous": "",
    "compact": "how='compact'",
    "external": "how='external'",
    "unchunked, partly": "how='partly'",
}
OF_INTEGERS = ("scale-offset", "nbit")
SOMETIMES = ("bzip2", "compact", "external", "nbit")  # each of these one time in four
DTYPES = ["f4", "f4", "f8", ">f4", ">f8", "i2", ">i2", "i4", "i8", "u1", "u2", "f2", "c8", "?"]
NUMBERS = ["f4", "f8", ">f4", "i2", ">i2", "i4", "u1"]  # of which a Field makes others
OF_UNEQUAL = [*NUMBERS, "u2"]  # of samples of unequal length
CONVERSIONS = [
    "dtype='f8'", "mean=3, std=2", "select=(slice(1, None),)", "axes=(1, 0)",
    "select=(slice(None, None, 2), slice(1, None)), axes=(1, 0), dtype='f4', mean=1",
]  # fmt: skip
KINDS = [
    *["rows"] * 5, "windows", "boxes", "axis", "random rows", "ragged", "ragged", "csr", "groups", "stars", "files",
    "varying", "column", "constant", "joined", "masked", "text", "virtual", "zarr", "web", "compressed", "own",
]  # fmt: skip
EACH = {"batch_size": "{batch}", "drop_last": "{drop_last}"}
ORDERS = {  # of solar's loader, and of torch's where that is another
    "sequential": ("", ""),
    "shuffle": ("shuffle=True", ""),
    "generator": ("shuffle=True, generator=generator(3)", ""),
    "sampler's generator": ("sampler=RandomSampler(data, generator=generator(4))", ""),
    "replacement": ("sampler=RandomSampler(data, True, 40, generator=generator(5))", ""),
    "weighted": (
        "sampler=WeightedRandomSampler([1 + i % 9 for i in range(len(data))], 50, generator=generator(6))", ""
    ),
    "list": ("sampler=[(7 * i) % len(data) for i in range(3 * len(data) // 2)]", ""),
    "odd batches": ("batch_sampler=EveryThird(len(data))", ""),
    "distributed": ("sampler=DistributedSampler(data, 2, 1, seed=7)", ""),
    "plan": ("sampler=PlanSampler(data, 1, 0, seed=8)", "sampler=DistributedSampler(data, 1, 0, seed=8)"),
    "plan, in order": (
        "sampler=PlanSampler(data, 1, 0, shuffle=False)", "sampler=DistributedSampler(data, 1, 0, shuffle=False)"
    ),
    "plan of two": ("sampler=PlanSampler(data, 2, 1, seed=9)", "sampler=DistributedSampler(data, 2, 1, seed=9)"),
    "plan, exact": (
        "sampler=PlanSampler(data, 1, 0, seed=10, tail='exact')", "sampler=DistributedSampler(data, 1, 0, seed=10)"
    ),
    "plan by weights": ("sampler=PlanSampler(data, 1, 0, weights=np.arange(1, len(data) + 1), num_samples=31)", ""),
    "plan by classes": ("sampler=PlanSampler(data, 1, 0, labels=np.arange(len(data)) % 3, per_class='equal')", ""),
    "plan by groups": ("sampler=PlanSampler(data, 1, 0, groups=np.arange(len(data)) % 4)", ""),
    "plan, mixed": ("sampler=PlanSampler(data, 1, 0, seed=11, order='mixed', block=2, window=250)", ""),
    "plan, blocks": ("sampler=PlanSampler(data, 1, 0, seed=12, order='blocks:5')", ""),
}  # fmt: skip
WITH_EPOCHS = tuple(name for name in ORDERS if name.startswith(("plan", "distributed")))
OF_GENERATOR = ("generator", "sampler's generator", "replacement")
OF_TWO = ("distributed", "plan of two")
FAULTS: list[tuple[str, bool]] = [  # and whether an epoch may have errors for it
    ("*reads(errno.EIO, after={a}, times=1)", False),
    ("*reads(errno.EAGAIN, after={a}, times=2)", False),
    ("*reads(errno.ESTALE, after={a}, times=1)", False),
    ("*reads(errno.EINTR, times=3)", False),
    ("*reads(most=100, times=40)", False),
    ("*reads(delay=0.02, after={a}, times=3)", False),
    ("*reads(errno.EACCES, after={a}, times={t})", True),
    ("*reads(errno.EREMOTEIO, after={a}, times={t})", True),
    ("*reads(errno.ENXIO)", True),
    ("fault('open', errno.EMFILE, after={a}, times=1)", False),
    ("fault('open', errno.EACCES, after={a}, times={t})", True),
    ("fault('open', errno.ENOENT)", True),
    ("fault('map', errno.ENOMEM)", False),
    ("fault('ring', errno.EIO, after={a}, times=3)", False),
    ("fault('memory', errno.ENOMEM, after={a}, times={t})", True),
    ("fault('memory', errno.ENOMEM, times={t})", True),
    ("fault('memory', errno.ENOMEM)", True),
    ("fault('look', delay=0.02, times=2)", False),
    ("fault('look', errno.EIO, after={a}, times={t})", True),
    ("*reads(delay=0.02, times=2), fault('memory', errno.ENOMEM, after={a}, times=1)", True),
    ("*reads(errno.EIO, after={a}, times=1), fault('open', errno.EACCES, after=1, times=1)", True),
]
CHANGES = ["cut short", "written to", "replaced", "deleted"]


@dataclass(frozen=True)
class Program:
    """One program. The defaults are the simplest; what a shrunk program has of others is what it takes to fail."""

    kind: str = "rows"
    count: int = 23  # samples, or rows that they are made of
    shape: tuple[int, ...] = (3, 5)
    dtype: str = "f4"
    stored: str = "contiguous"
    chunk: int = 4  # rows
    tiles: bool = False  # chunks do not hold whole rows
    files: int = 1
    structure: str = "dict"
    convert: str = ""
    form: str = ""  # of the kind
    around: str = ""
    transform: str = ""
    page_cache: bool | None = None
    batch: int | None = 4
    drop_last: bool = False
    order: str = "sequential"
    workers: int = 0
    prefetch: int | None = None
    persistent: bool = False
    buffer: int | str | None = 0
    ahead: int | None = None
    epochs: int | None = None
    disk: bool = False
    device: bool = False
    timeout: float = 0
    damaged: str = ""  # on_error, where a chunk is
    sets_epochs: bool = True
    elsewhere: tuple[int, int] | None = None
    acts: tuple[str, ...] = ("epoch()",)


class Parts(NamedTuple):
    """A kind of samples as text: what writes its files, what makes the dataset, and the list of its samples."""

    files: list[str]
    data: str
    samples: str


# --- the draw ----


def drawn(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    large = rng.random() < 0.1
    shape = rng.choice([(), (3,), (3, 5), (3, 5), (4, 6, 2)])
    program = Program(
        kind=kind,
        count=rng.choice([1, 2, 7, 23, 23, 40, 61]) if not large else rng.choice([150, 300]),
        shape=(40, 50) if large else shape,
        dtype=rng.choice(DTYPES),
        stored=_stored(rng),
        chunk=rng.choice([1, 3, 4, 16, 100]),
        tiles=rng.random() < 0.25,
        files=rng.choice([1, 1, 2, 3]),
        structure=rng.choice(["dict", "dict", "alone", "tuple", "nested"]),
        convert=rng.choice(["", "", "", *CONVERSIONS]),
        form=str(rng.randrange(6)),
        around=rng.choice(["", "", "", "", "subset", "concat", "part of two"]),
        transform=rng.choice(["", "", "", "here", "threads"]),
        page_cache=rng.choice([None, None, None, True, False]),
        batch=rng.choice([None, 1, 3, 4, 8, 8, 50]),
        drop_last=rng.random() < 0.2,
        order=rng.choice([*ORDERS, "shuffle", "shuffle", "generator", "plan", "plan"]),
        workers=2 * (rng.random() < 0.15),
        prefetch=rng.choice([None, 1, 4]),
        persistent=rng.random() < 0.3,
        buffer=rng.choice([None, 0, 0, 0, 1, 1, 30, 60, 100, "64MiB"]),
        ahead=rng.choice([None, None, 1, 2, 9]),
        epochs=rng.choice([None, None, 2, 5]),
        disk=rng.random() < 0.5,
        device=rng.random() < 0.05,
        timeout=rng.choice([0, 0, 0, 0, 30]),
        damaged=rng.choice(["raise", "skip"]) if rng.random() < 0.05 else "",
        sets_epochs=rng.random() < 0.7,
        elsewhere=(rng.randrange(3), rng.randrange(6)) if rng.random() < 0.15 else None,
        acts=tuple(_act(rng, rng.random() < 0.35) for _ in range(rng.randint(1, 5))),
    )
    return sound(program)


def _stored(rng: random.Random) -> str:
    found = rng.choice([*WHOLE, *["contiguous"] * 3, *CHUNKED])
    return "contiguous" if found in SOMETIMES and rng.random() < 0.75 else found


def _act(rng: random.Random, wrong: bool) -> str:
    batches = rng.choice([0, 1, 2, 3, 5, 20])
    if not wrong:
        other = rng.choice(["", "", ", buffer=0", ", buffer='64MiB'", ", ahead=1", ", close=False"])
        right = [
            "epoch()", "epoch()", f"leave({max(1, batches)})", f"abandon({batches})", "beside()", "peek()",
            f"resume({batches}{other})", f"resume({batches}{other})", f"closed({batches})",
        ]  # fmt: skip
        return rng.choice(right)
    if rng.random() < 0.2:
        return f"changed({rng.choice(CHANGES)!r}, 'a.h5', {batches})"
    if rng.random() < 0.2:
        slow = rng.choice(["", "", ", *reads(delay=0.01)"])
        return f"closed_beside({rng.choice([0, 0.001, 0.003, 0.01])}{slow})"
    text, fails = rng.choice(FAULTS)
    text = text.format(a=rng.choice([0, 0, 1, 2, 5, 11]), t=rng.choice([1, 1, 2, 5, 1000]))
    return f"faulty({text}{'' if fails else ', fails=False'})"


# --- what goes together ----


def sound(program: Program) -> Program:
    """The nearest program that makes sense: of what excludes each other one is left out."""
    one = _with_damage(program) if program.damaged else program
    if one.stored == "compact" and one.count * _items(one.shape) * 8 > 60_000:
        one = replace(one, stored="contiguous")
    if one.stored == "external" and one.files > 1:
        one = replace(one, files=1)
    if one.kind in ("boxes", "axis", "random rows") and (len(one.shape) < 2 or one.shape[0] < 3):
        one = replace(one, shape=(3, 5))
    if one.count > 100 and (one.kind == "axis" or (one.batch or 1) < 3):  # of many batches each takes its time
        one = replace(one, count=61, shape=(3, 5))
    if one.kind in ("boxes", "axis") and one.stored in ("external", "bzip2", "nbit"):  # only native code cuts boxes
        one = replace(one, stored="contiguous")
    if one.kind not in ("rows", "virtual", "zarr", "web", "masked"):
        one = replace(one, convert="")
    if one.convert and (one.dtype not in NUMBERS or len(one.shape) != 2):
        one = replace(one, dtype="f4", shape=(3, 5))
    if one.stored in OF_INTEGERS and one.dtype not in ("i2", "i4", "i8"):
        one = replace(one, stored="gzip")
    if one.kind != "rows":
        one = replace(one, files=1, structure="dict")
    if one.kind in ("ragged", "csr", "groups", "varying", "column", "text", "own", "stars", "files", "compressed"):
        one = replace(
            one, stored=one.stored if one.stored in CHUNKED and one.kind in ("ragged", "csr") else "contiguous"
        )
    if one.kind == "ragged":  # no buffer holds rows that a chunk cuts in two
        one = replace(one, tiles=False)
    if one.order == "plan, exact":
        one = replace(one, drop_last=False)
    if one.kind in ("ragged", "csr") and one.stored in ("bzip2", "partly", "partly gzip", *OF_INTEGERS, "early"):
        one = replace(one, stored="gzip")
    if one.kind in ("ragged", "csr", "groups", "varying"):
        one = replace(one, batch=one.batch or 3, device=False, dtype=one.dtype if one.dtype in OF_UNEQUAL else "f4")
    if one.kind in ("csr", "varying", "text", "own", "column"):
        one = replace(one, transform="", device=False, dtype="f4")
    if one.kind == "text":
        one = replace(one, batch=one.batch or 3)
    if one.kind == "own":  # torch's own loader reads it
        one = replace(one, epochs=None, disk=False, timeout=0, device=False, around="", page_cache=None, dtype="f4")
        one = replace(one, workers=0, buffer=None if isinstance(one.buffer, int) else one.buffer)
    if one.kind == "random rows":  # torch's lasting workers would not hear of the epoch
        one = replace(one, sets_epochs=True, persistent=False)
    if one.order in WITH_EPOCHS:
        one = replace(one, sets_epochs=True)
    if one.order == "odd batches":
        one = replace(one, batch=one.batch or 1)
    if one.batch is None:
        one = replace(one, drop_last=False)
    if one.transform == "threads":
        one = replace(one, workers=0)
    if one.order == "weighted":
        one = replace(one, elsewhere=None)
    if one.elsewhere is not None and (isinstance(one.buffer, int) and one.buffer):
        one = replace(one, buffer="64MiB")
    if one.kind == "web":
        one = replace(one, elsewhere=None, stored="gzip" if one.stored in ("external", "bzip2", "nbit") else one.stored)
    if not one.workers:
        one = replace(one, prefetch=None, persistent=False)
    return replace(one, acts=_sound_acts(one))


def _with_damage(one: Program) -> Program:
    """The second chunk of rows with numbers and a checksum is what is damaged."""
    one = replace(
        one, kind="rows", structure="dict", around="", transform="", files=1, tiles=False, batch=one.batch or 3
    )
    one = replace(one, buffer="64MiB" if one.buffer else 0, order="shuffle" if one.order in OF_TWO else one.order)
    one = replace(one, elsewhere=None, device=False, chunk=min(one.chunk, 16), count=max(one.count, 23))
    return one if one.stored in ("checked", "all") else replace(one, stored="checked")


def _sound_acts(one: Program) -> tuple[str, ...]:
    if one.damaged:
        return ("damaged(bad)",) * min(3, len(one.acts))
    acts, seeded, resumed = list[str](), False, False
    for act in one.acts:
        name = act.partition("(")[0]
        if name == "resume" and seeded and one.order in OF_GENERATOR:  # of another seed than a new loader has
            act = "epoch()"
        if name == "beside" and resumed and one.order == "shuffle":  # a state has the draws of a loader that is alone
            act = "epoch()"
        resumed = resumed or name == "resume"
        seeded = seeded or name in ("faulty", "changed", "closed_beside") or act in ("abandon(0)", "closed(0)")
        if name == "resume" and one.order == "weighted":  # of which a state holds no draws
            act = "epoch()"
        if one.kind == "files":
            act = act.replace("'a.h5'", "'00.h5'")
        if name in ("abandon", "beside") and (one.persistent or one.device or one.workers or one.kind == "own"):
            act = "epoch()"
        if name in ("faulty", "changed") and (one.kind in ("web", "own", "zarr") or one.stored == "bzip2"):
            act = "epoch()"
        if name == "changed" and (one.kind in ("virtual", "compressed", "joined") or one.stored == "external"):
            act = "epoch()"
        if name == "faulty" and one.timeout and ", fails=False" in act:
            act = act.replace(", fails=False", "")
        acts.append(act)
    return tuple(acts)


def _items(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def simpler(program: Program) -> list[Program]:
    """The same with one thing less, for each."""
    plain, found = Program(), []
    for at in range(len(program.acts) if len(program.acts) > 1 else 0):
        found.append(replace(program, acts=program.acts[:at] + program.acts[at + 1 :]))
    for one in fields(program):
        if one.name not in ("acts", "count") and getattr(program, one.name) != getattr(plain, one.name):
            found.append(replace(program, **{one.name: getattr(plain, one.name)}))
    if program.count > 7:
        found.append(replace(program, count=7))
    return [one for one in map(sound, dict.fromkeys(found)) if one != program]


# --- the script ----


def text_of(program: Program, title: str) -> str:
    """The program as a script."""
    parts = KIND[program.kind](program)
    own = _own(program)
    order, of_torch = ORDERS[program.order]
    options = ", ".join(filter(None, (_batches(program), order, _workers(program))))
    lines = [f'"""{title}"""', HEAD, *parts.files]
    samples = _transformed(program, parts.samples)
    if program.damaged:
        lines += [f"whole = {samples}", "bad = damage('a.h5', 'x', 1)"]
        samples = "whole"
    lines += [
        "pair = Pair(",
        f"    lambda: {parts.data},",
        f"    lambda epoch: {samples}," if samples else "    None,",
        f"    lambda data: dict({options}),",
    ]
    if of_torch:
        both = ", ".join(filter(None, (_batches(program), of_torch, _workers(program))))
        lines.append(f"    lambda data: dict({both}),")
    if program.around:
        lines.append(f"    around={program.around!r},")
    lines += [f"    sets_epochs={program.sets_epochs},", *(f"    {one}," for one in own), ")"]
    if program.elsewhere is not None:
        lines.append(f"pair.begun_elsewhere{program.elsewhere}")
    lines += [f"pair.{act}" for act in program.acts] + ["pair.end()", ""]
    return "\n".join(lines)


def _batches(program: Program) -> str:
    if program.order == "odd batches":
        return ""
    return f"batch_size={program.batch}" + (", drop_last=True" if program.drop_last else "")


def _workers(program: Program) -> str:
    if not program.workers:
        return ""
    found = [f"num_workers={program.workers}, multiprocessing_context='fork'"]
    found += [f"prefetch_factor={program.prefetch}"] if program.prefetch else []
    return ", ".join([*found, *["persistent_workers=True"] * program.persistent])


def _own(program: Program) -> list[str]:
    """The arguments of solar's loader alone."""
    found = []
    if isinstance(program.buffer, int) and program.buffer:
        nbytes = program.count * _items(program.shape) * 8
        found.append(f"buffer={max(1, nbytes * program.buffer // 100)}")
    elif program.buffer is not None:
        found.append(f"buffer={program.buffer!r}")
    found += [f"ahead={program.ahead}"] if program.ahead and program.kind != "own" else []
    found += [f"epochs={program.epochs}"] if program.epochs else []
    found += [f"storage={DISK}"] if program.disk else []
    found += ["device='cpu'"] if program.device else []
    found += [f"timeout={program.timeout}"] if program.timeout else []
    return found + ([f"on_error={program.damaged!r}"] if program.damaged else [])


def _transformed(program: Program, samples: str) -> str:
    return f"list(map(twice, {samples}))" if program.transform else samples


def _of_dataset(program: Program) -> str:
    """The arguments of H5Dataset after the fields."""
    found = [f"page_cache={program.page_cache}"] if program.page_cache is not None else []
    found += ["transform=twice"] if program.transform else []
    found += ["thread_safe=True"] if program.transform == "threads" else []
    return "".join(f", {one}" for one in found)


def _storage(program: Program, rows: int, shape: Sequence[int] | None = None) -> str:
    """The options of a dataset of so many rows, as they stand in `dict(...)`."""
    shape = program.shape if shape is None else shape
    if program.stored in WHOLE:
        return WHOLE[program.stored]
    within = tuple(max(1, -(-length // 2)) if program.tiles else length for length in shape)
    chunks = (max(1, min(program.chunk, rows)), *within)
    more = CHUNKED[program.stored].format(grow=(None, *shape))
    return f"chunks={chunks}" + (f", {more}" if more else "")


def _x(program: Program, rows: int, seed: int, shape: Sequence[int] | None = None) -> str:
    """The values of a dataset, with its options."""
    own = program.shape if shape is None else tuple(shape)
    return f"(made({(rows, *own)}, {program.dtype!r}, {seed}), dict({_storage(program, rows, own)}))"


def _structured(program: Program, x: str, y: str) -> str:
    return {
        "alone": x, "tuple": f"({x}, {y})", "dict": f"{{'x': {x}, 'y': {y}}}", "nested": f"{{'in': ({x},), 'y': {y}}}",
    }[program.structure]  # fmt: skip


# --- the kinds ----


def _rows(one: Program, *, where: str = "here") -> Parts:
    names = [f"{'abc'[at]}.h5" for at in range(one.files)]
    counts = [one.count // one.files + (at < one.count % one.files) for at in range(one.files)]
    names, counts = [n for n, c in zip(names, counts, strict=True) if c], [c for c in counts if c]
    files, first = [], 0
    for at, (name, count) in enumerate(zip(names, counts, strict=True)):
        files.append(f"write({name!r}, x={_x(one, count, at)}, y=np.arange({first}, {first + count}))")
        first += count
    path = repr(names if len(names) > 1 else names[0])
    x = f"Field('x', {one.convert})" if one.convert else "'x'"
    data = f"H5Dataset({_at(where, path)}, {_structured(one, x, repr('y'))}{_of_dataset(one)})"
    values = f"converted(stored({path}, 'x'), {one.convert})" if one.convert else f"stored({path}, 'x')"
    return Parts(files, data, f"[{_structured(one, 'x', 'y')} for x, y in zip({values}, stored({path}, 'y'))]")


def _at(where: str, path: str) -> str:
    return f"web.url({path})" if where == "web" else path


def _web(one: Program) -> Parts:
    parts = _rows(one, where="web")
    return parts._replace(
        files=[*parts.files, "from far_kit import served", "server = served(Path())", "web = server.__enter__()"]
    )


def _windows(one: Program) -> Parts:
    form = int(one.form or 0)
    steps = [(-1, 0, 1), (0, 2), (0,), (-2, 1), (0, 1, 2, 3), (3, -3)][form]
    every, pad = 1 + form % 3, "edge" if form % 2 or one.count < 12 else None
    ends = sorted({one.count // 3, one.count // 2, one.count} - {0})
    files = [f"write('a.h5', x={_x(one, one.count, 0)}, y=np.arange({one.count}), ends={ends})"]
    samples = f"Windows(every={every}, pad={pad!r}, ends='ends')"
    data = f"H5Dataset('a.h5', {{'x': Field('x', steps={steps}), 'y': 'y'}}, samples={samples}{_of_dataset(one)})"
    at = f"anchors({ends}, [{steps}, None], {every}, pad={pad is not None})"
    parts = [f"windows_of(stored('a.h5', {name!r}), {own}, {at}, {ends})" for name, own in (("x", steps), ("y", None))]
    return Parts(files, data, f"[{{'x': x, 'y': y}} for x, y in zip({', '.join(parts)})]")


def _boxes(one: Program) -> Parts:
    form = int(one.form or 0)
    shape = (one.count, *one.shape)
    box = tuple(max(1, length * (1 + form % 2) // 3) for length in shape[-2:])
    overlap = tuple(min(form // 2, length - 1) for length in box)
    files = [f"write('a.h5', x={_x(one, one.count, 0)}, z=made({shape}, 'i4', 1))"]
    crops = f"Crops({box}, overlap={overlap})"
    data = f"H5Dataset('a.h5', {{'x': 'x', 'z': 'z'}}, samples={crops}{_of_dataset(one)})"
    parts = [f"boxes_of(stored('a.h5', {name!r}), {box}, {overlap})" for name in ("x", "z")]
    return Parts(files, data, f"[{{'x': x, 'z': z}} for x, z in zip({', '.join(parts)})]")


def _axis(one: Program) -> Parts:
    files = [f"write('a.h5', x={_x(one, one.count, 0)})"]
    form, last = int(one.form or 0), len(one.shape)
    axis: Any = [1, last, -1, (0, 1), (0, 1), 1][form]
    data = f"H5Dataset('a.h5', Field('x', axis={axis}){_of_dataset(one)})"
    if axis == (0, 1):
        return Parts(files, data, "[x for row in stored('a.h5', 'x') for x in row]")
    return Parts(files, data, f"list(np.moveaxis(stored('a.h5', 'x'), {axis}, 0))")


def _random_rows(one: Program) -> Parts:
    """Which rows are drawn, the dataset says by itself; tests/test_random_rows.py, whether they are random."""
    files = [f"write('a.h5', x={_x(one, one.count, 0)}, y=np.arange({one.count}))"]
    fields_ = "{'x': Field('x', rows=2, at='random'), 'y': 'y'}"
    more = _of_dataset(one)
    files += [
        f"plain = H5Dataset('a.h5', {fields_})",
        "def samples(epoch):",
        "    plain.set_epoch(epoch)",
        "    return [plain[i] for i in range(len(plain))]",
    ]
    return Parts(files, f"H5Dataset('a.h5', {fields_}{more})", "samples(epoch)")


def _ragged(one: Program) -> Parts:
    form = int(one.form or 0)
    lengths = [(5 * i + i * i) % 7 for i in range(one.count)]
    told = ["ends", "lengths", "indptr", "ids"][form % 4]
    lengths[0] = 3
    if told == "ids":
        lengths = [length or 1 for length in lengths]
    batch, length = [("jagged", ""), ("flat", ""), ("padded", ""), ("padded", ", length=9")][(form + one.count) % 4]
    shape = one.shape[:1]
    files = [
        f"lengths = np.array({lengths})",
        f"write('a.h5', x={_x(one, sum(lengths), 0, shape)}, y=np.arange({one.count}), ends=np.cumsum(lengths), "
        "lengths=lengths, indptr=np.cumsum([0, *lengths]), ids=np.repeat(np.arange(len(lengths)), lengths))",
    ]
    ragged = f"Ragged('x', {told}={told!r}, batch={batch!r}{length})"
    data = f"H5Dataset('a.h5', {{'x': {ragged}, 'y': 'y'}}{_of_dataset(one)})"
    sample = f"{{'x': Unequal({batch!r}, x{', 9' if length else ''}), 'y': y}}"
    parts = "zip(parts_of(stored('a.h5', 'x'), np.cumsum(lengths)), stored('a.h5', 'y'))"
    return Parts(files, data, f"[{sample} for x, y in {parts}]")


def _csr(one: Program) -> Parts:
    dense = bool(int(one.form or 0) % 2)
    files = [
        f"dense = made(({one.count}, 9), {one.dtype!r}, 0) % 3 * (made(({one.count}, 9), 'u1', 1) % 2)",
        "dense[0, 0] = 1",
        "rows, columns = np.nonzero(dense)",
        "counts = np.count_nonzero(dense, axis=1)",
        f"options = dict({_storage(replace(one, chunk=5), 5, ())})" if one.stored in CHUNKED else "options = {}",
        "write('a.h5', X__data=(dense[rows, columns], options), X__indices=(columns.astype('i4'), options), "
        f"X__indptr=np.cumsum([0, *counts]).astype('i4'), y=np.arange({one.count}))",
        "import h5py",
        "with h5py.File('a.h5', 'r+') as file:",
        "    kind = {'encoding-type': 'csr_matrix', 'encoding-version': '0.1.0', 'shape': dense.shape}",
        "    file['X'].attrs.update(kind)",
    ]
    data = f"H5Dataset('a.h5', {{'x': CSR('X', dense={dense}), 'y': 'y'}}{_of_dataset(one)})"
    return Parts(files, data, f"[{{'x': SparseSample(x, {dense}), 'y': y}} for y, x in enumerate(dense)]")


def _groups(one: Program) -> Parts:
    alike = bool(int(one.form or 0) % 2)
    rows = [3 if alike else 1 + (5 * i) % 4 for i in range(one.count)]
    names = sorted(f"m{at}" for at in range(one.count))
    shape = one.shape[:1]
    files = [
        f"for at, rows in enumerate({rows}):",
        f"    x = made((rows, *{shape}), {one.dtype!r}, at)",
        "    write('a.h5', **{f'mol__m{at}__x': x, f'mol__m{at}__y': at})",
    ]
    data = f"H5Dataset('a.h5', {{'x': 'x', 'y': 'y'}}, samples='/mol/*'{_of_dataset(one)})"
    x = "x" if alike or one.count == 1 else "Unequal('jagged', x)"
    # h5py gives scalars for the datasets of a number
    found = f"[(stored_in('a.h5', f'mol/{{name}}')) for name in {names}]"
    return Parts(files, data, f"[{{'x': {x}, 'y': y}} for x, y in {found}]")


def _stars(one: Program) -> Parts:
    rows = [1 + (5 * i) % 4 for i in range(max(1, one.count // 3))]
    files = [
        f"for at, rows in enumerate({rows}):",
        f"    write('a.h5', **{{f'mol__m{{at}}__x': made((rows, *{one.shape}), {one.dtype!r}, at), "
        "f'mol__m{at}__y': np.arange(rows)})",
    ]
    names = sorted(f"m{at}" for at in range(len(rows)))
    data = f"H5Dataset('a.h5', {{'x': '/mol/*/x', 'y': '/mol/*/y'}}{_of_dataset(one)})"
    each = f"for m in {names} for x, y in zip(stored('a.h5', f'mol/{{m}}/x'), stored('a.h5', f'mol/{{m}}/y'))"
    return Parts(files, data, f"[{{'x': x, 'y': y}} {each}]")


def _files(one: Program) -> Parts:
    count = min(one.count, 12)
    files = [
        f"for at in range({count}):",
        f"    write(f'{{at:02}}.h5', x=made({one.shape or (3,)}, {one.dtype!r}, at), y=at)",
    ]
    names = f"[f'{{at:02}}.h5' for at in range({count})]"
    data = f"H5Dataset({names}, {{'x': 'x', 'y': 'y'}}, samples='files'{_of_dataset(one)})"
    return Parts(files, data, f"[{{'x': x, 'y': y}} for x, y in (stored_in(name, '/') for name in {names})]")


def _varying(one: Program) -> Parts:
    lengths = [3, *((5 * i + i * i) % 7 for i in range(1, one.count))]
    form = ["jagged", "flat", "padded"][int(one.form or 0) % 3]
    files = [f"write('a.h5', x=(np.array({lengths}), dict(how='varying')), y=np.arange({one.count}))"]
    data = f"H5Dataset('a.h5', {{'x': Ragged('x', batch={form!r}), 'y': 'y'}}{_of_dataset(one)})"
    parts = "zip(stored('a.h5', 'x'), stored('a.h5', 'y'))"
    return Parts(files, data, f"[{{'x': Unequal({form!r}, x), 'y': y}} for x, y in {parts}]")


def _column(one: Program) -> Parts:
    kind = "[('a', '>i2'), ('b', [('c', 'f8'), ('d', 'f4')])]"
    files = [
        f"table = np.zeros({one.count}, {kind})",
        f"table['a'], table['b']['c'] = np.arange({one.count}), made(({one.count},), 'f8', 0)",
        "write('a.h5', t=table)",
    ]
    data = f"H5Dataset('a.h5', {{'a': Field('t', column='a'), 'c': Field('t', column='b.c')}}{_of_dataset(one)})"
    return Parts(files, data, "[{'a': a, 'c': c} for a, c in zip(table['a'].astype('i2'), table['b']['c'])]")


def _constant(one: Program) -> Parts:
    counts = [one.count, one.count // 2 + 1]
    files = [
        f"write('{name}.h5', x={_x(one, count, at)}, mask=made((2, 3), 'f4', {at}), label={at})"
        for at, (name, count) in enumerate(zip("ab", counts, strict=True))
    ]
    if one.stored == "external":
        files, counts = files[:1], counts[:1]
    names = [f"{name}.h5" for name in "ab"[: len(files)]]
    fields_ = "{'x': 'x', 'mask': Field('mask', constant=True), 'label': Field('label', constant=True)}"
    data = f"H5Dataset({names}, {fields_}{_of_dataset(one)})"
    sample = "{'x': x, 'mask': mask, 'label': label}"
    each = f"for name in {names} for mask, label in [once(name, 'mask', 'label')] for x in stored(name, 'x')"
    return Parts(files, data, f"[{sample} {each}]")


def _joined(one: Program) -> Parts:
    files = [
        f"keys = np.random.default_rng(2).permutation({one.count}) + 40",
        f"write('a.h5', x={_x(one, one.count, 0)}, id=np.arange({one.count}) + 40)",
        "write('labels.h5', label=keys.astype('f4') / 8, id=keys)",
    ]
    data = f"H5Dataset('a.h5', {{'x': 'x', 'y': Field('label', file='labels.h5', by='id')}}{_of_dataset(one)})"
    return Parts(files, data, "[{'x': x, 'y': np.float32((40 + i) / 8)} for i, x in enumerate(stored('a.h5', 'x'))]")


def _masked(one: Program) -> Parts:
    parts = _rows(one)
    mask = f"good=(np.arange({one.count}) * 7 % 5 != 1)"
    data = parts.data[:-1] + ", where='good')"
    samples = f"[sample for sample, good in zip({parts.samples}, stored('a.h5', 'good')) if good]"
    return Parts([*parts.files[:-1], parts.files[-1][:-1] + f", {mask})"], data, samples)


def _text(one: Program) -> Parts:
    kind = ["h5py.string_dtype()", "'S9'"][int(one.form or 0) % 2]
    files = [
        "import h5py",
        f"names = np.array([f'sample {{i}}' for i in range({one.count})], 'S9')",
        f"write('a.h5', x=(names, dict(dtype={kind})), y=np.arange({one.count}))",
    ]
    data = f"H5Dataset('a.h5', {{'x': 'x', 'y': 'y'}}{_of_dataset(one)})"
    return Parts(files, data, "[{'x': x, 'y': y} for x, y in zip(stored('a.h5', 'x'), stored('a.h5', 'y'))]")


def _virtual(one: Program) -> Parts:
    counts = [one.count // 2, one.count - one.count // 2] if one.count > 1 else [1]
    sources = [(f"{name}.h5", count) for name, count in zip("ab", counts, strict=False)]
    plain = replace(one, stored="contiguous" if one.stored in ("external", "nbit", "partly") else one.stored)
    files = [f"write({name!r}, x={_x(plain, count, at)})" for at, (name, count) in enumerate(sources)]
    files += [
        f"write_virtual('v.h5', 'x', {sources}, {one.shape}, {one.dtype!r})",
        f"write('v.h5', y=np.arange({one.count}))",
    ]
    x = f"Field('x', {one.convert})" if one.convert else "'x'"
    values = f"converted(stored('v.h5', 'x'), {one.convert})" if one.convert else "stored('v.h5', 'x')"
    data = f"H5Dataset('v.h5', {{'x': {x}, 'y': 'y'}}{_of_dataset(one)})"
    return Parts(files, data, f"[{{'x': x, 'y': y}} for x, y in zip({values}, stored('v.h5', 'y'))]")


def _zarr(one: Program) -> Parts:
    chunks = (max(1, min(one.chunk, one.count)), *one.shape)
    dtype = one.dtype.replace(">", "")
    files = [
        f"write_zarr('a.zarr', x=(made({(one.count, *one.shape)}, {dtype!r}, 0), dict(chunks={chunks})), "
        f"y=(np.arange({one.count}), {{}}))"
    ]
    x = f"Field('x', {one.convert})" if one.convert else "'x'"
    values = f"converted(stored('a.zarr', 'x'), {one.convert})" if one.convert else "stored('a.zarr', 'x')"
    data = f"H5Dataset('a.zarr', {{'x': {x}, 'y': 'y'}}{_of_dataset(one)})"
    return Parts(files, data, f"[{{'x': x, 'y': y}} for x, y in zip({values}, stored('a.zarr', 'y'))]")


def _compressed(one: Program) -> Parts:
    """By `solar compress`, without loss."""
    shape = one.shape or (3,)
    dtype = one.dtype if one.dtype in ("f4", "f8", "i2", "i4") else "f4"
    files = [
        f"write('plain.h5', x=made({(one.count, *shape)}, {dtype!r}, 0), y=np.arange({one.count}))",
        f"solar.compress('plain.h5', 'a.h5', 'lossless', chunk_samples={one.chunk})",
    ]
    data = f"H5Dataset('a.h5', {{'x': 'x', 'y': 'y'}}{_of_dataset(one)})"
    return Parts(files, data, "[{'x': x, 'y': y} for x, y in zip(stored('plain.h5', 'x'), stored('plain.h5', 'y'))]")


def _of_the_users(one: Program) -> Parts:
    chunked = replace(one, stored=["contiguous", "gzip", "chunks"][int(one.form or 0) % 3])
    files = [
        "from solar.loader import adopt",
        "adopt.CHEAP = adopt.WORTH_A_TABLE = adopt.WORTH_A_DATASET = 0.0",
        f"write('a.h5', x={_x(chunked, one.count, 0)}, y=np.arange({one.count}))",
    ]
    return Parts(files, f"Reads('a.h5', {one.count})", "")


KIND: dict[str, Callable[[Program], Parts]] = {
    "rows": _rows, "windows": _windows, "boxes": _boxes, "axis": _axis, "random rows": _random_rows, "ragged": _ragged,
    "csr": _csr, "groups": _groups, "stars": _stars, "files": _files, "varying": _varying, "column": _column,
    "constant": _constant, "joined": _joined, "masked": _masked, "text": _text, "virtual": _virtual, "zarr": _zarr,
    "web": _web, "compressed": _compressed, "own": _of_the_users,
}  # fmt: skip
