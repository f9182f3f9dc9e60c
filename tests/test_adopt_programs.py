"""Random Datasets over random files: solar's loader gives what torch's gives, to the bit, errors and draws included."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from adopt_kit import Around, adopt_always, answered, compared, kept
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit import settle
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from solar.loader import adopt_plans

PROGRAMS = int(os.environ.get("SOLAR_PROGRAMS", "60"))
ROWS = 40
KINDS = ["f4", "f8", ">f4", ">i2", "i8", "u1", "f2", "c8", "?", "text", "bytes", "enum", "compound", "ragged"]


class Stored(NamedTuple):
    """A dataset of the file."""

    kind: str
    rows: int
    shape: tuple[int, ...]
    options: dict[str, Any]


@st.composite
def stored(draw: Any) -> Stored:
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=2)))
    rows = draw(st.sampled_from([ROWS, ROWS, ROWS, 3 * ROWS, ROWS - 3, 1]))
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["chunks"] = (draw(st.integers(1, rows)), *(draw(st.integers(1, n)) for n in shape))
        if draw(st.booleans()):
            options |= {"compression": "gzip", "shuffle": draw(st.booleans())}
        if draw(st.booleans()):
            options["maxshape"] = (None, *shape)
    kind = draw(st.sampled_from(KINDS[:9])) if draw(st.integers(0, 3)) else draw(st.sampled_from(KINDS))
    return Stored(kind, rows, shape, options)


def write(file: Any, name: str, one: Stored, rng: np.random.Generator) -> None:
    shape = (one.rows, *one.shape)
    numbers = rng.integers(0, 100, shape)
    if one.kind in ("text", "bytes"):
        kind = h5py.string_dtype() if one.kind == "text" else np.dtype("S3")
        file.create_dataset(name, data=numbers.astype(str).astype("S3"), dtype=kind, **one.options)
    elif one.kind == "enum":
        kind = h5py.enum_dtype({"a": 0, "b": 1, "c": 2}, "i1")
        file.create_dataset(name, data=(numbers % 3).astype("i1"), dtype=kind, **one.options)
    elif one.kind == "compound":
        values = np.zeros(shape, [("a", "i4"), ("b", "f8")])
        values["a"], values["b"] = numbers, numbers / 3
        file.create_dataset(name, data=values, **one.options)
    elif one.kind == "ragged":
        data = file.create_dataset(name, shape, h5py.vlen_dtype(np.int32), **one.options)
        for at in np.ndindex(shape):
            data[at] = np.arange(numbers[at] % 4)
    else:
        values = numbers % 2 if one.kind == "?" else numbers - 50 if one.kind != "u1" else numbers
        file.create_dataset(name, data=values.astype(one.kind), **one.options)


def write_file(path: Path, files: list[Stored], seed: int, parts: set[str]) -> None:
    """Datasets d0, d1, ...; and of `parts` the same in groups, behind links, or as virtual datasets."""
    with h5py.File(path, "w") as file:
        for at, one in enumerate(files):
            name = f"d{at}"
            write(file, name, one, np.random.default_rng(seed + at))
            for group in range(GROUPS if "groups" in parts else 0):
                write(file, f"g{group}/{name}", one, np.random.default_rng(seed + 10 * group + at))
            if "soft" in parts:
                file[f"soft/{name}"] = h5py.SoftLink(f"/{name}")
            if "external" in parts:
                file[f"external/{name}"] = h5py.ExternalLink(OTHER[path.name], f"/{name}")
            if "virtual" in parts and one.kind in KINDS[:8]:
                layout = h5py.VirtualLayout(file[name].shape, file[name].dtype)
                layout[...] = h5py.VirtualSource(file[name])
                file.create_virtual_dataset(f"virtual/{name}", layout)
            elif "virtual" in parts:
                file[f"virtual/{name}"] = h5py.SoftLink(f"/{name}")
    settle(path)


GROUPS = 4
OTHER = {"scan.h5": "second.h5", "second.h5": "scan.h5"}


# --- what `__getitem__` does ----

Where = Callable[[int, "Program"], Any]
ROW: dict[str, Where] = {
    "i": lambda i, _: i,
    "2i+1": lambda i, _: 2 * i + 1,
    "backwards": lambda i, _: -1 - i,
    "from the end": lambda i, _: ROWS - 1 - i,
    "halves": lambda i, _: i // 2,
    "looked up": lambda i, p: p.table[i],
    "hashed": lambda i, _: (7 * i * i + 3) % ROWS,
    "drawn": lambda i, _: int(torch.randint(0, ROWS, ())),
    "numpy": lambda i, _: np.int64(i),
    "small": lambda i, _: np.uint8(i),
    "too far": lambda i, _: i + 2,
    "boolean": lambda i, _: i % 2 == 0,
    "first": lambda i, _: 0,
}
ROWS_OF: dict[str, Where] = {
    "window": lambda i, _: slice(i, i + 3),
    "around": lambda i, _: slice(max(0, i - 2), i + 2),
    "stepped": lambda i, _: slice(i, i + 6, 2),
    "to the end": lambda i, _: slice(i, None),
    "negative": lambda i, _: slice(-i - 1, None),
    "nothing": lambda i, _: slice(i, i),
    "reversed": lambda i, _: slice(i, None, -1),
    "numpy's": lambda i, _: slice(np.int32(i), np.int32(i + 2)),
    "all": lambda i, _: slice(None),
    "listed": lambda i, _: [i // 2, i // 2 + 1],
    "masked": lambda i, _: np.arange(ROWS) % 7 == i % 7,
    "dots": lambda i, _: Ellipsis,
    "none": lambda i, _: (),
    "column": lambda i, _: (slice(None), i % 3),
    "columns": lambda i, _: (slice(i % 5, 9), slice(i % 2, i % 2 + 2)),
    "two lists": lambda i, _: ([i // 2, i // 2 + 1], [0, 1]),
    "array": lambda i, p: np.sort(p.table[i : i + 3]),
    "unsorted": lambda i, p: p.table[i : i + 3],
    "empty list": lambda i, _: [],
    "repeated": lambda i, _: [i, i],
    "masked twice": lambda i, _: (np.arange(ROWS) < i, np.array([True])),
    "blocks": lambda i, _: h5py.MultiBlockSlice(start=i % 7, stride=9, count=3, block=2),
    "zero step": lambda i, _: slice(i, i + 3, 0),
    "far slice": lambda i, _: slice(i, 10 * ROWS),
    "text": lambda i, _: "a",
    "floating": lambda i, _: float(i),
}
WITHIN = [(), (), (), (0,), (slice(1, None),), (Ellipsis,), (Ellipsis, 0), (slice(None), -1), (slice(None, None, 2),),
          (9,), (None,)]  # fmt: skip
HOW = ["[]", "[]", "[]", "[]", "read_direct", "read_direct into f8", "astype", "asarray", "field", "kept",
       "written", "fields", "asstr", "iterated", "chunks", "cast", "in a part", "low", "thread", "caught", "in a with",
       "length"]  # fmt: skip
FOLDERS = ["", "", "", "", "", "", "groups", "groups", "soft", "external", "virtual"]
FILES = ["scan", "scan", "scan", "scan", "in turn", "in halves", "both"]
MODES: list[dict[str, Any]] = [
    *[{}] * 8, {"mode": "r+"}, {"swmr": True}, {"driver": "core"}, {"driver": "stdio"}, {"libver": "latest"},
    {"rdcc_nbytes": 0}, {"object": True}, {"locking": False},
]  # fmt: skip


class Step(NamedTuple):
    name: str
    where: str
    within: tuple[Any, ...]
    how: str
    when: int  # only for one of so many indices
    folder: str = ""  # within the file
    file: str = "scan"


class Program(Dataset[Any]):
    """A Dataset that was made up."""

    def __init__(self, folder: str, steps: list[Step], draws: bool, opens: str, mode: dict[str, Any]) -> None:
        self.folder, self.steps, self.draws, self.opens, self.mode = folder, steps, draws, opens, mode
        self.table = [int(one) for one in np.random.default_rng(5).permutation(ROWS)]
        self.files: dict[str, Any] = {}
        self.objects: list[Any] = []
        self.kept: dict[Any, Any] = {}

    def __len__(self) -> int:
        return ROWS

    def open(self, name: str) -> Any:
        path, mode = f"{self.folder}/{name}.h5", dict(self.mode)
        if mode.pop("object", False):
            self.objects.append(Path(path).open("rb"))  # noqa: SIM115
            return h5py.File(self.objects[-1], "r", **mode)
        return h5py.File(path, **{"mode": "r", **mode})

    def __del__(self) -> None:
        for one in [*self.files.values(), *self.objects]:
            one.close()

    def __getitem__(self, index: int) -> Any:
        found = []
        for step in self.steps:
            if index % step.when:
                continue
            for name in {"scan": ["scan"], "in turn": [["scan", "second"][index % 2]], "both": ["second", "scan"],
                         "in halves": [["scan", "second"][index // (ROWS // 2) % 2]]}[step.file]:  # fmt: skip
                if self.opens == "each":
                    with self.open(name) as file:
                        found.append(self.take(file, step, index, name))
                else:
                    if name not in self.files:
                        self.files[name] = self.open(name)
                    found.append(self.take(self.files[name], step, index, name))
        if self.opens == "each sample":
            for file in self.files.values():
                file.close()
            self.files.clear()
        return found

    def take(self, file: Any, step: Step, index: int, file_name: str) -> Any:
        drawn = (random.random(), np.random.rand(), float(torch.rand(()))) if self.draws else ()
        folder = {"": "", "groups": f"g{index % GROUPS}/"}.get(step.folder, f"{step.folder}/")
        data = file[folder + step.name]
        where = {**ROW, **ROWS_OF}[step.where](index, self)
        args = (*where, *step.within) if isinstance(where, tuple) else (where, *step.within)
        args = args[0] if len(args) == 1 else args
        if step.how == "kept" and not self.opens:
            data = self.kept.setdefault((file_name, data.name), data)
        return WAYS.get(step.how, lambda data, args: data[args])(data, args), drawn


def into_memory(data: Any, args: Any, kind: Any = None) -> Any:
    rows = np.empty(data.shape, "i1")[args]
    into = np.zeros(np.shape(rows), data.dtype if kind is None else kind)
    data.read_direct(into, args)
    return into


def into_a_part(data: Any, args: Any) -> Any:
    rows = np.empty(data.shape, "i1")[args]
    into = np.zeros((3, *np.shape(rows)), data.dtype)
    data.read_direct(into, args, np.s_[1])
    return into


def written_to(data: Any, args: Any) -> Any:
    """An array of the caller's own: what he writes to it changes nobody's."""
    first = data[args]
    if not isinstance(first, np.ndarray) or first.dtype.hasobject:
        return first
    before = first.copy()
    first.view(np.uint8 if first.flags.c_contiguous and first.ndim else first.dtype)[...] = 1
    return before, data[args]


def low(data: Any, args: Any) -> Any:
    into = np.zeros(data.shape, data.dtype)
    data.id.read(h5py.h5s.ALL, h5py.h5s.ALL, into)
    return into, data[args]


def in_a_thread(data: Any, args: Any) -> Any:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: data[args]).result(), data[args]


def caught(data: Any, args: Any) -> Any:
    try:
        return data[args]
    except Exception as error:
        return type(error), str(error), data[0]


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "asarray": lambda data, _: np.asarray(data),
    "astype": lambda data, args: data.astype("f4")[args],
    "field": lambda data, args: data["a"] if isinstance(args, tuple) else data[args, "a"],
    "read_direct": into_memory,
    "read_direct into f8": partial(into_memory, kind="f8"),
    "written": written_to,
    "fields": lambda data, args: data.fields("a")[args],
    "asstr": lambda data, args: data.asstr()[args],
    "iterated": lambda data, _: [*islice(data, 3)],
    "chunks": lambda data, _: [data[one] for one in data.iter_chunks()],
    "cast": lambda data, _: np.array(data, dtype="f8"),
    "in a part": into_a_part,
    "low": low,
    "thread": in_a_thread,
    "caught": caught,
    "in a with": lambda data, args: [data.file[data.name][args] for _ in range(2)],
    "length": lambda data, args: (len(data), data.shape, data.nbytes, data[args]),
}


class OfBatches(Program):
    """Is asked for the samples of a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Stream(IterableDataset[Any]):
    """The same one after the other."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Any:
        return (self.inner[index] for index in range(len(self.inner)))


@st.composite
def programs(draw: Any) -> tuple[list[Stored], list[Step], dict[str, Any]]:
    files = draw(st.lists(stored(), min_size=1, max_size=3))
    plain = draw(st.integers(0, 2)) > 0  # no errors are meant
    rows = st.sampled_from([*ROW][:10] if plain else [*ROW])
    several = st.sampled_from([*ROWS_OF][:5] if plain else [*ROWS_OF])
    step = st.builds(
        Step,
        st.sampled_from([f"d{at}" for at in range(len(files))]),
        st.one_of(rows, rows, several),
        st.sampled_from(WITHIN[:3] if plain else WITHIN),
        st.sampled_from(HOW[:5] if plain else HOW),
        st.sampled_from([1, 1, 1, 1, 2, 3]),
        st.sampled_from(FOLDERS),
        st.sampled_from(FILES),
    )
    steps = draw(st.lists(step, min_size=1, max_size=3))
    options = {
        "seed": draw(st.integers(0, 99)),
        "draws": draw(st.booleans()),
        "opens": draw(st.sampled_from(["", "", "", "", "each", "each sample"])),
        "mode": draw(st.sampled_from(MODES)),
        "batches": draw(st.integers(0, 4)) == 0,
        "around": draw(st.sampled_from(["", "", "", "subset", "concat", "subset of concat", "wrapper", "stream"])),
        "batch": draw(st.sampled_from([None, 1, 3, 8, 50])),
        "order": draw(st.sampled_from(["", "shuffle", "shuffle", "generator", "list", "weighted"])),
        "memory": draw(st.sampled_from([None, None, 0, 4096, 1 << 20, 1 << 24, 1 << 24])),
        "ahead": draw(st.sampled_from([None, None, 1, 30])),
    }
    return files, steps, options


def around(data: Any, how: str) -> Any:
    order = data.table
    return {
        "": lambda: data,
        "subset": lambda: Subset(data, order[:30]),
        "concat": lambda: ConcatDataset([data, data]),
        "subset of concat": lambda: Subset(ConcatDataset([data, data]), [2 * one for one in order]),
        "wrapper": lambda: Around(Subset(data, order)),
        "stream": lambda: Stream(Subset(data, order)),
    }[how]()


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_always(monkeypatch)
    monkeypatch.setattr(adopt_plans.PlannedRows, "nbytes", 1 << 60)  # epochs are planned, where there is room for all


counts = [0, 0, 0]


@pytest.mark.filterwarnings("ignore:.* no effect:UserWarning")
@given(programs())
@settings(max_examples=PROGRAMS, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_program_gives_what_it_gives_with_torchs_loader(
    program: tuple[list[Stored], list[Step], dict[str, Any]],
) -> None:
    files, steps, options = program
    with tempfile.TemporaryDirectory() as folder:
        parts = {step.folder for step in steps}
        for name, seed in (("scan.h5", 0), ("second.h5", 100)):
            if name == "scan.h5" or "external" in parts or {step.file for step in steps} != {"scan"}:
                write_file(Path(folder) / name, files, seed, parts)

        def make() -> Any:
            kind = OfBatches if options["batches"] else Program
            data = kind(folder, steps, options["draws"], options["opens"], options["mode"])
            return around(data, options["around"])

        def of_loader() -> dict[str, Any]:
            if options["around"] == "stream":
                return {}
            order, samples = options["order"], len(make())
            return {
                "": lambda: {},
                "shuffle": lambda: {"shuffle": True},
                "generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(options["seed"])},
                "list": lambda: {"sampler": [*range(0, samples, 3), *range(samples - 1, 0, -2), 4, 4]},
                "weighted": lambda: {"sampler": torch.utils.data.WeightedRandomSampler([1.0] * samples, 33)},
            }[order]()

        loader = compared(make, 3, options["seed"], of_loader, batch_size=options["batch"], collate_fn=kept,
                          ours={"buffer": options["memory"], "ahead": options["ahead"]})  # fmt: skip
        assert "ended by an error" not in loader.report()
        counts[0] += answered(loader)[0]
        counts[1] += answered(loader)[1]
        counts[2] += loader.stats()["bytes"] > 0


def test_programs_were_answered_from_memory() -> None:
    """Else nothing was tried. It comes after them."""
    if not counts[1]:
        pytest.skip("no program was run here")
    assert counts[0] > counts[1] / 4
    assert counts[2] > 0, "epochs were planned"
