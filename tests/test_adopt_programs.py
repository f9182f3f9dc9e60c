"""Random Datasets over random files: solar's loader gives what torch's gives, to the bit, errors and draws included."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from adopt_kit import Around, answered, compared, kept
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit import settle
from torch.utils.data import ConcatDataset, Dataset, Subset

from solar.loader import adopt

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
    "floating": lambda i, _: float(i),
}
WITHIN = [(), (), (), (0,), (slice(1, None),), (Ellipsis,), (Ellipsis, 0), (slice(None), -1), (slice(None, None, 2),),
          (9,), (None,)]  # fmt: skip
HOW = ["[]", "[]", "[]", "[]", "read_direct", "read_direct into f8", "astype", "asarray", "field", "kept"]


class Step(NamedTuple):
    name: str
    where: str
    within: tuple[Any, ...]
    how: str
    when: int  # only for one of so many indices


class Program(Dataset[Any]):
    """A Dataset that was made up."""

    def __init__(self, path: str, steps: list[Step], draws: bool, opens: bool) -> None:
        self.path, self.steps, self.draws, self.opens = path, steps, draws, opens
        self.table = [int(one) for one in np.random.default_rng(5).permutation(ROWS)]
        self.file: Any = None
        self.kept: dict[str, Any] = {}

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        if self.opens:
            with h5py.File(self.path) as file:
                return [self.take(file, one, index) for one in self.steps if index % one.when == 0]
        self.file = self.file or h5py.File(self.path)
        return [self.take(self.file, one, index) for one in self.steps if index % one.when == 0]

    def take(self, file: Any, step: Step, index: int) -> Any:
        drawn = (random.random(), np.random.rand(), float(torch.rand(()))) if self.draws else ()
        data = file[step.name]
        where = {**ROW, **ROWS_OF}[step.where](index, self)
        args = (*where, *step.within) if isinstance(where, tuple) else (where, *step.within)
        args = args[0] if len(args) == 1 else args
        if step.how == "asarray":
            return np.asarray(data), drawn
        if step.how == "astype":
            return data.astype("f4")[args], drawn
        if step.how == "field":
            return data["a"] if isinstance(args, tuple) else data[args, "a"], drawn
        if step.how == "kept":
            return self.kept.setdefault(step.name, data)[args] if not self.opens else data[args], drawn
        if step.how.startswith("read_direct"):
            rows = np.empty(data.shape, "i1")[args]
            into = np.zeros(np.shape(rows), "f8" if step.how.endswith("f8") else data.dtype)
            data.read_direct(into, args)
            return into, drawn
        return data[args], drawn


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
    )
    steps = draw(st.lists(step, min_size=1, max_size=3))
    options = {
        "seed": draw(st.integers(0, 99)),
        "draws": draw(st.booleans()),
        "opens": draw(st.integers(0, 5)) == 0,
        "around": draw(st.sampled_from(["", "", "", "subset", "concat", "subset of concat", "wrapper"])),
        "batch": draw(st.sampled_from([None, 1, 3, 8, 50])),
        "order": draw(st.sampled_from(["", "shuffle", "shuffle", "generator", "list", "weighted"])),
        "memory": draw(st.sampled_from([None, None, 0, 4096, 1 << 20])),
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
    }[how]()


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "CHEAP", 0.0)
    monkeypatch.setattr(adopt, "WORTH_A_TABLE", 0.0)
    monkeypatch.setattr(adopt, "WORTH_A_DATASET", 0.0)
    monkeypatch.setattr(adopt, "BAD_CHECKS", 1 << 30)


counts = [0, 0]


@pytest.mark.filterwarnings("ignore:.* no effect over .*:UserWarning")
@given(programs())
@settings(max_examples=PROGRAMS, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_program_gives_what_it_gives_with_torchs_loader(
    program: tuple[list[Stored], list[Step], dict[str, Any]],
) -> None:
    files, steps, options = program
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "scan.h5")
        with h5py.File(path, "w") as file:
            for at, one in enumerate(files):
                write(file, f"d{at}", one, np.random.default_rng(at))
        settle(path)

        def make() -> Any:
            return around(Program(path, steps, options["draws"], options["opens"]), options["around"])

        def of_loader() -> dict[str, Any]:
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


def test_programs_were_answered_from_memory() -> None:
    """Else nothing was tried. It comes after them."""
    if not counts[1]:
        pytest.skip("no program was run here")
    assert counts[0] > counts[1] / 4
