"""Rows of many groups, and windows inside them: conformers of molecules, demonstrations of robots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from buffer_kit import equal
from everyday_kit import check, check_service
from kit import settle
from test_together import case, check_counts, run
from test_together import check as check_together
from torch.utils.data import ConcatDataset

from solar import DataLoader, Field, H5Dataset, LayoutError, Ragged, SolarError, Windows, inspect
from solar.cli import main

STORED: dict[str, dict[str, Any]] = {"contiguous": {}, "gzip": {"chunks": 3, "compression": "gzip", "shuffle": True}}
MOLECULES = {"C2H4": (7, 6), "CH4": (5, 5), "H2O": (0, 3), "N2": (1, 2), "O3": (9, 3)}  # conformers, atoms


def molecules(path: Path, stored: str = "gzip", atoms: int = 0, **sizes: tuple[int, int]) -> Path:
    """A group for each molecule: positions and energies of its conformers, and its numbers once."""
    draw = np.random.default_rng(len(sizes))
    with h5py.File(path, "w") as file:
        for name, (n, a) in (sizes or MOLECULES).items():
            a = atoms or a
            group = file.create_group(f"mol/{name}")
            for field, values in (("positions", draw.random((n, a, 3)).astype("f4")), ("energy", draw.random(n))):
                options = dict(STORED[stored])
                if options and n:
                    options["chunks"] = (options["chunks"], *values.shape[1:])
                    options["maxshape"] = (None, *values.shape[1:])
                group.create_dataset(field, data=values, **(options if n else {}))
            group["numbers"], group["charge"] = draw.integers(1, 9, a), float(a)
        file["mol"].attrs["unit"] = "eV"
    settle(path)
    return path


def conformers(*paths: Path) -> list[dict[str, Any]]:
    found = []
    for path in paths:
        with h5py.File(path) as file:
            for group in file["mol"].values():
                rows = zip(group["positions"][()], group["energy"][()], strict=True)
                found += [{"x": x, "y": y} for x, y in rows]
    return found


FIELDS = {"x": "/mol/*/positions", "y": "/mol/*/energy"}


@pytest.mark.parametrize("stored", STORED)
def test_each_row_of_each_group_is_a_sample(stored: str, tmp_path: Path) -> None:
    path = molecules(tmp_path / "a.h5", stored, atoms=4)
    check(H5Dataset(path, FIELDS), conformers(path))


@pytest.mark.parametrize("stored", STORED)
def test_rows_of_another_shape_in_each_group_are_ragged(stored: str, tmp_path: Path) -> None:
    paths = [
        molecules(tmp_path / "a.h5", stored),
        molecules(tmp_path / "b.h5", stored, Ne=(3, 1), Xe=(4, 7), Kr=(2, 7)),
    ]
    given = {"x": Ragged("/mol/*/positions", batch="flat"), "y": "/mol/*/energy"}
    check(H5Dataset([str(path) for path in paths], given), conformers(*paths), torchs=False)
    data = H5Dataset([str(path) for path in paths], given)
    with DataLoader(data, 6) as loader:
        for number, batch in enumerate(loader):
            samples = conformers(*paths)[6 * number : 6 * number + 6]
            assert np.array_equal(batch["x"][0], np.concatenate([one["x"] for one in samples]))
            assert np.array_equal(np.diff(batch["x"][1]), [len(one["x"]) for one in samples])


@pytest.mark.parametrize("atoms", [0, 4])
def test_a_service_hands_out_conformers(atoms: int, tmp_path: Path) -> None:
    path = molecules(tmp_path / "a.h5", atoms=atoms)
    given = FIELDS if atoms else FIELDS | {"x": Ragged("/mol/*/positions", batch="flat")}
    check_service(lambda: H5Dataset(path, given), [path], tmp_path)


# --- windows ----


LENGTHS = {"demo_0": 9, "demo_1": 3, "demo_10": 12, "demo_2": 0, "demo_3": 6}


def demos(path: Path, stored: str = "gzip") -> Path:
    draw = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for name, n in LENGTHS.items():
            for field, values in (
                ("obs/eye", draw.integers(0, 255, (n, 4, 4)).astype("u1")),
                ("actions", draw.random((n, 2))),
            ):
                options = dict(STORED[stored])
                if options and n:
                    options |= {"chunks": (3, *values.shape[1:]), "maxshape": (None, *values.shape[1:])}
                file.create_dataset(f"data/{name}/{field}", data=values, **(options if n else {}))
            file[f"data/{name}/goal"] = draw.random(5)
        file["mask/train"] = np.arange(3)
    settle(path)
    return path


EYE, ACTIONS = "/data/demo_*/obs/eye", "/data/demo_*/actions"


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize(("every", "pad"), [(1, None), (2, None), (1, "edge"), (3, "edge")])
def test_windows_lie_inside_one_group(stored: str, every: int, pad: Any, tmp_path: Path) -> None:
    path = demos(tmp_path / "a.h5", stored)
    fields = {"past": Field(EYE, steps=range(-2, 1)), "next": Field(ACTIONS, steps=range(4)), "now": ACTIONS}
    samples = []
    with h5py.File(path) as file:
        for demo in file["data"].values():
            eye, actions = demo["obs/eye"][()], demo["actions"][()]
            n = len(actions)
            for a in list(range(n) if pad else range(2, n - 3))[::every]:
                past, coming = (np.clip(np.arange(a + b, a + e), 0, n - 1) for b, e in ((-2, 1), (0, 4)))
                samples.append({"past": eye[past], "next": actions[coming], "now": actions[a].copy()})
    check(H5Dataset(path, fields, samples=Windows(every=every, pad=pad)), samples)


def test_a_service_hands_out_windows_of_groups(tmp_path: Path) -> None:
    path = demos(tmp_path / "a.h5")
    fields = {"past": Field(EYE, steps=range(-2, 1)), "now": ACTIONS}
    check_service(lambda: H5Dataset(path, fields), [path], tmp_path)


# --- what a group has once ----


@pytest.mark.slow(every=2)
@pytest.mark.parametrize("stored", STORED)
def test_rows_have_what_their_group_has_once(stored: str, tmp_path: Path) -> None:
    paths = [
        molecules(tmp_path / "a.h5", stored),
        molecules(tmp_path / "b.h5", stored, Ne=(3, 1), Xe=(4, 7), He=(2, 7)),
    ]
    expected = []
    for path in paths:
        with h5py.File(path) as file:
            for group in file["mol"].values():
                once = {"n": group["numbers"][()], "q": np.float32(group["charge"][()])}
                expected += [{"y": y, **once} for y in group["energy"][()]]
    for form in ("jagged", "flat", "padded"):
        fields = {
            "y": "/mol/*/energy",
            "n": Ragged("/mol/*/numbers", constant=True, batch=form),
            "q": Field("/mol/*/charge", constant=True, dtype="f4"),
        }
        if form == "jagged":  # of which torch cannot compare batches
            data = H5Dataset([str(path) for path in paths], fields)
            assert next(iter(DataLoader(data, 9, shuffle=True)))["n"].is_nested
            continue
        check(H5Dataset([str(path) for path in paths], fields), expected, torchs=False)
        joined = ConcatDataset([H5Dataset(path, fields) for path in paths])
        whole = H5Dataset([str(path) for path in paths], fields)
        for buffer in (0, "1MiB"):
            found = []
            for data in (joined, whole):
                torch.manual_seed(2)
                with DataLoader(data, 4, shuffle=True, buffer=buffer) as loader:
                    found.append(list(loader))
            assert equal(*found)


def test_windows_have_the_goal_of_their_group(tmp_path: Path) -> None:
    path = demos(tmp_path / "a.h5")
    fields = {"a": Field(ACTIONS, steps=range(3)), "goal": Field("/data/demo_*/goal", constant=True)}
    samples = []
    with h5py.File(path) as file:
        for demo in file["data"].values():
            actions = demo["actions"][()]
            samples += [{"a": actions[i : i + 3], "goal": demo["goal"][()]} for i in range(len(actions) - 2)]
    check(H5Dataset(path, fields), samples)


def test_a_mask_leaves_some_rows_of_groups(tmp_path: Path) -> None:
    path = molecules(tmp_path / "a.h5", atoms=4)
    data = H5Dataset(path, FIELDS, where=("/mol/*/energy", lambda energy: energy > 0.5))
    check(data, [one for one in conformers(path) if one["y"] > 0.5])


def test_solar_plan_and_inspect_take_names_with_stars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(molecules(tmp_path / "a.h5", atoms=4))
    assert main(["plan", path, "/mol/*/positions", "/mol/*/energy", "--memory", "1MiB"]) == 0
    assert "/mol/*/positions" in capsys.readouterr().out
    ragged = str(molecules(tmp_path / "r.h5"))
    assert main(["plan", ragged, "/mol/*/energy", "--ragged", "/mol/*/positions", "--memory", "1MiB"]) == 0
    assert "22 samples" in capsys.readouterr().out
    with pytest.raises(LayoutError, match=r"rows have 2 to 6 along their first axis, by group, and so are ragged"):
        inspect(ragged, "/mol/*/positions")
    assert main(["digest", ragged, "/mol/*/energy", "--ragged", "/mol/*/positions", "--batch-size", "4"]) == 0
    demo = str(demos(tmp_path / "d.h5"))
    assert main(["plan", demo, "--window", f"{ACTIONS}=0:4", "--memory", "1MiB"]) == 0
    assert "18 windows of" in capsys.readouterr().out
    layout = inspect(path, "/mol/*/energy")
    assert layout.shape == (22,) and layout.groups is not None and layout.groups[1] == "/mol/CH4"


CHUNKED = {"chunks": (2, 2, 3), "compression": "gzip"}


@pytest.mark.parametrize(
    ("fields", "more", "said"),
    [
        ({"x": "/mol/*/positions", "y": "total"}, {}, "total: all fields of a sample are rows of groups, or constants"),
        (
            {"x": "/mol/*/numbers", "y": "/mol/*/energy"},
            {},
            "/mol/C2H4: /mol/*/numbers has 6 rows, and ",
        ),
        ("/mol/*/energie", {}, "energie"),
        ("/mol/X*/energy", {}, "there are no groups whose names fit '/mol/X*'"),
        ("/mol/*", {}, "stars stand for groups, and the last part of a name is that of the dataset"),
        ("/mol/*/charge", {}, "is a scalar, and a scalar has no rows"),
        (
            Field("/mol/*/positions", dtype="f8"),
            {},
            "another shape in each group, which a Field cannot",
        ),
        ({"x": "/mol/*/positions", "y": Field("/mol/*/energy", steps=(0, 1))}, {}, "which windows cannot be made of"),
        ("/mol/*/energy", {"samples": "files"}, "samples='files' is another kind"),
        ("/mol/*/energy", {"samples": Windows(ends="e")}, "each group is a part for windows"),
        ("/mol/*/energy", {"collective_open": True}, "looked for by each rank"),
        (Field("/mol/*/energy", axis=0), {}, "axis, file, by, cf and rows are not for rows of groups"),
        (Ragged("/mol/*/energy"), {}, "its rows have one shape in all groups: leave Ragged away"),
        (Ragged("/mol/*/positions", ends="e"), {}, "within groups no dataset says where samples end"),
        ("/cut/*/positions", {}, "and its chunks, (2, 2, 3), cut rows of 4 in parts"),
        (("/mol/*/energy", Field("/cut/*/unit", constant=True)), {}, "a constant of groups goes with rows of the same"),
        (
            ("total", Field("/mol/*/charge", constant=True)),
            {},
            "a constant of groups goes with rows of the",
        ),
        (("total", Ragged("total", constant=True)), {}, "only constants of groups may differ in length"),
        (("/mol/*/energy", Field("/mol/*/numbers", constant=True, mean=1)), {}, "a Field does not convert such values"),
    ],
)
def test_what_rows_of_groups_cannot_be_is_told(fields: Any, more: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = molecules(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        file["total"] = np.arange(22)
        for name, atoms in (("a", 4), ("b", 2)):
            file.create_dataset(f"cut/{name}/positions", data=np.zeros((4, atoms, 3)), **CHUNKED)
            file[f"cut/{name}/unit"] = 1.0
    settle(path)
    with pytest.raises(LayoutError) as caught:
        H5Dataset(path, fields, **more)
    assert said in str(caught.value)


def test_a_dataset_whose_own_name_has_a_star_is_itself(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a*/x*"] = np.arange(3)
    assert [int(one) for one in H5Dataset(tmp_path / "a.h5", "a*/x*")] == [0, 1, 2]


def test_a_damaged_conformer_is_named_with_its_group(tmp_path: Path) -> None:
    path = molecules(tmp_path / "a.h5")
    with h5py.File(path) as file:
        chunk = file["mol/O3/positions"].id.get_chunk_info(1)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset)
        raw.write(b"\xff" * chunk.size)
    settle(path)
    data = H5Dataset(path, FIELDS)
    with pytest.raises(SolarError, match=r"\(of .*a.h5: /mol/O3/positions, row 3\)"):
        data[16]


@pytest.mark.slow(but=["2-1"])
@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (2, 2)])
def test_ranks_that_read_together_share_rows_of_groups(ranks: int, nodes: int, tmp_path: Path) -> None:
    path, samples = tmp_path / "a.h5", 0
    with h5py.File(path, "w") as file:
        for number, (n, atoms) in enumerate([(19, 3), (4, 7), (0, 2), (31, 5), (16, 1)]):
            numbers = np.arange(samples, samples + n)
            options = {"chunks": (8, atoms, 3), "maxshape": (None, atoms, 3), "compression": "gzip"} if n else {}
            values = np.random.default_rng(number).random((n, atoms, 3))
            file.create_dataset(f"g/m{number}/v", data=values, **options)
            file[f"g/m{number}/y"] = np.repeat(numbers, 3).reshape(n, 3)
            samples += n
    settle(path)
    given = {"samples": samples, "fields": {"y": "/g/*/y"}, "known": 3}
    cases = [case([str(path)], **given, tail=tail, buffer=400_000 * ranks) for tail in ("pad", "drop")]
    more = {"ragged": {"v": "/g/*/v"}, "unequal": "varying"}
    cases += [case([str(path)], **given, **more, tail=tail, buffer=400_000 * ranks) for tail in ("pad", "exact")]
    for one, found in zip(cases, run("mpi", ranks, tmp_path, cases, nodes), strict=True):
        check_together(one, found, torchs=not found[0]["exchange"])
        check_counts(found)
