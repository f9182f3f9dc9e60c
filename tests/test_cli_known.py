"""`solar inspect` on files as communities write them: its lines run as they stand, and give what is meant there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from torch.utils.data import DataLoader

from solar.cli import main

Lines = dict[str, list[dict[str, str]]]
Told = Callable[[Path], Lines]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """What `solar inspect` says of a file, by kind, each with the imports that it prints."""

    def inspect(path: Path) -> Lines:
        assert main(["inspect", "--json", str(path)]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert main(["inspect", str(path), "--all"]) == 0
        shown = capsys.readouterr().out
        found: Lines = {}
        for one in answer["shapes"]:
            assert one["words"] in shown and one["python"] in shown
            found.setdefault(one["kind"], []).append(one | {"imports": answer["imports"]})
        assert not answer["imports"] or answer["imports"].split("; ")[0] in shown
        return found

    return inspect


def run(line: dict[str, str]) -> Any:
    """What the line makes, with nothing but the imports that are printed beside it."""
    names: dict[str, Any] = {}
    exec(line["imports"], names)
    return eval(line["python"], names)


def alike(sample: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sample.keys() == expected.keys()
    for key, value in expected.items():
        assert np.array_equal(sample[key], value), key


def demos(path: Path, lengths: list[int]) -> None:
    """Demonstrations as robomimic writes them."""
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number, n in enumerate(lengths):
            group = file.create_group(f"data/demo_{number}")
            group.attrs["num_samples"] = n
            group["actions"], group["states"] = random.normal(size=(n, 7)), random.normal(size=(n, 9))
            group["rewards"], group["dones"] = np.zeros(n), np.arange(n) == n - 1
            for name in ("obs", "next_obs"):
                group[f"{name}/eye"] = random.integers(0, 255, (n, 8, 8, 3), dtype="u1")
                group[f"{name}/pose"] = random.normal(size=(n, 3))
        file["mask/train"] = np.array([b"demo_0"])


@pytest.mark.parametrize("lengths", [[20, 23, 17], [20 + i % 4 for i in range(12)]])
def test_demonstrations_are_rows_and_windows_of_all_of_them_with_their_observations(
    tmp_path: Path, told: Told, lengths: list[int]
) -> None:
    demos(path := tmp_path / "demos.hdf5", lengths)
    found = told(path)
    assert found.keys() == {"robots", "rows", "windows", "groups"}
    (sequences,) = map(run, found["robots"])
    assert len(sequences) == sum(lengths) and sequences[0]["next_obs"]["eye"].shape[1:] == (8, 8, 3)
    names = ["actions", "dones", "rewards", "states", "obs/eye", "obs/pose", "next_obs/eye", "next_obs/pose"]
    (rows,), (clips,), (whole,) = map(run, found["rows"]), map(run, found["windows"]), map(run, found["groups"])
    steps = len(clips[0]["actions"])
    assert (
        len(rows) == sum(lengths) and len(clips) == sum(n - steps + 1 for n in lengths) and len(whole) == len(lengths)
    )
    with h5py.File(path) as file:
        row = clip = 0
        for number, demo in enumerate(file["data"].values()):
            alike(whole[number], {name: demo[name][()] for name in names})
            alike(rows[row], {name: demo[name][0] for name in names})
            alike(clips[clip], {name: demo[name][:steps] for name in names})
            row, clip = row + len(demo["actions"]), clip + len(demo["actions"]) - steps + 1
    batch = next(iter(DataLoader(clips, batch_size=2)))
    assert batch["obs/eye"].shape == (2, steps, 8, 8, 3)


def molecules(path: Path, above: str, names: str = "mol_{:03}") -> None:
    text = h5py.string_dtype()
    with h5py.File(path, "w") as file:
        for number in range(9):
            n = 3 + number % 4
            group = file.create_group(f"{above}/{names.format(number)}")
            group.create_dataset("smiles", data="C" * n, dtype=text)
            group["atomic_numbers"], group["positions"] = np.full(n, 6, "u1"), np.full((n, 3), number, "f4")
            group["energy"] = float(number)


@pytest.mark.parametrize("above", ["", "/train", "/a/b"])
def test_molecules_with_text_beside_numbers_are_samples_without_it(tmp_path: Path, told: Told, above: str) -> None:
    molecules(path := tmp_path / "molecules.h5", above)
    found = told(path)
    assert found.keys() == {"groups"}
    (line,) = found["groups"]
    assert "without smiles" in line["words"]
    data = run(line)
    with h5py.File(path) as file:
        for sample, group in zip(data, file[above or "/"].values(), strict=True):
            alike(sample, {name: group[name][()] for name in ("atomic_numbers", "positions", "energy")})


def test_groups_of_one_series_are_found_among_others(tmp_path: Path, told: Told) -> None:
    molecules(path := tmp_path / "molecules.h5", "/set")
    with h5py.File(path, "a") as file:
        file["set/about/version"], file["set/units"] = 3, np.arange(4)
    (line,) = told(path)["groups"]
    assert line["python"].endswith('samples="/set/mol_*")')
    assert len(run(line)) == 9


def conformers(path: Path, more: tuple[int, ...] = ()) -> None:
    """Molecules with a row for each conformer; numbers of atoms and conformers differ from molecule to molecule."""
    rng = np.random.default_rng(5)
    with h5py.File(path, "w") as file:
        for number in range(9):
            n, rows = 3 + number % 4, 2 + number % 3
            group = file.create_group(f"C{number}H{n}")
            group["coordinates"] = rng.random((rows, n, *(n for _ in more), 3)).astype("f4")
            group["energy"], group["atomic_numbers"] = rng.random(rows), np.full(n, 6, "u1")


def test_conformers_are_rows_with_what_each_molecule_has_once(tmp_path: Path, told: Told) -> None:
    conformers(path := tmp_path / "conformers.h5")
    found = told(path)
    assert found.keys() == {"rows", "groups"}
    (line,) = found["rows"]
    assert "9 groups alike of 2 to 4 rows, each row a sample" in line["words"]
    data = run(line)
    with h5py.File(path) as file:
        rows = [(group, row) for group in file.values() for row in range(len(group["energy"]))]
        for sample, (group, row) in zip(data, rows, strict=True):
            expected = {"coordinates": group["coordinates"][row], "energy": group["energy"][row]}
            alike(sample, {**expected, "atomic_numbers": group["atomic_numbers"][()]})
    (rest,) = found["groups"]
    assert "without coordinates" in rest["words"]
    assert [len(sample["atomic_numbers"]) for sample in run(rest)] == [3 + i % 4 for i in range(9)]


def test_what_differs_in_two_axes_of_a_row_cannot_be_read_and_is_named(tmp_path: Path, told: Told) -> None:
    conformers(path := tmp_path / "conformers.h5", more=(1,))
    said, rest = told(path)["groups"]
    assert not said["python"] and "coordinates cannot be read: from group to group they differ" in said["words"]
    assert "without coordinates" in rest["words"]


def test_rows_with_text_are_read_without_it(tmp_path: Path, told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(path := tmp_path / "qm.h5", "w") as file:
        file.create_dataset("smiles", data=["C"] * 20, dtype=h5py.string_dtype())
        file["energy"], file["dipole"] = np.arange(20.0), np.arange(60.0).reshape(20, 3)
    assert not told(path)
    main(["inspect", str(path)])
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if line[:3] in ("in ", "imp"))
    data = run({"imports": lines["imports"], "python": lines["in Python"]})
    alike(data[3], {"dipole": [9, 10, 11], "energy": 3})


def well(path: Path, space: tuple[int, ...]) -> None:
    """Trajectories as The Well has them."""
    lead, random = (3, 20), np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file.attrs["n_trajectories"] = 3
        for order, names in enumerate((["density", "pressure"], ["velocity"], ["stress"])):
            for name in names:
                shape = (*lead, *space, *(len(space),) * order)
                file[f"t{order}_fields/{name}"] = random.normal(size=shape).astype("f4")
        file["t0_fields/mask"] = np.zeros((3, *space), "f4")  # the same in all steps
        file["dimensions/time"], file["dimensions/x"] = np.arange(20.0), np.arange(float(space[0]))
        file["scalars/viscosity"] = 0.1
        file["boundary_conditions/x_periodic/mask"] = np.ones(space[0], bool)


@pytest.mark.parametrize("space", [(16, 16), (16, 16, 16)])
def test_trajectories_of_the_well_are_windows_along_their_axes(
    tmp_path: Path, told: Told, space: tuple[int, ...]
) -> None:
    well(path := tmp_path / "flow.hdf5", space)
    found = told(path)
    assert found.keys() == {"steps"}
    (line,) = found["steps"]
    assert "without /t0_fields/mask, not of all steps" in line["words"]
    data = run(line)
    assert len(data) == 3 * (20 - 4)
    with h5py.File(path) as file:
        for number, (trajectory, step) in {0: (0, 0), 17: (1, 1), 47: (2, 15)}.items():
            here = (trajectory, slice(step, step + 5))
            named = {"density": "t0_fields", "pressure": "t0_fields", "velocity": "t1_fields", "stress": "t2_fields"}
            alike(data[number], {name: file[f"{group}/{name}"][here] for name, group in named.items()})


@pytest.mark.parametrize("indexed", [False, True])
def test_a_table_is_named_with_its_columns_and_its_indexes_are_no_samples(
    tmp_path: Path, told: Told, indexed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = [("index", "i8"), ("energy", "f8"), ("values_block_0", "f8", (2,)), ("name", "S3")]
    values = np.zeros(100, columns)
    values["index"], values["energy"], values["values_block_0"] = np.arange(100), np.arange(100) / 7, [[1, 2]] * 100
    with h5py.File(path := tmp_path / "table.h5", "w") as file:
        file.create_dataset("df/table", data=values, chunks=(64,))
        if indexed:  # as PyTables does
            file["df/_i_table/index/sortedLR"] = np.arange(131201)
            file["df/_i_table/index/bounds"] = np.zeros((0, 127), "i8")
    found = told(path)
    assert found.keys() == {"table"}
    (line,) = found["table"]
    assert "/df/table is a table of 100 rows, and its columns are fields, without name" in line["words"]
    data = run(line)
    assert len(data) == 100
    alike(data[77], {name: values[name][77] for name in ("index", "energy", "values_block_0")})
    main(["inspect", str(path)])
    assert 'column="energy"' in capsys.readouterr().out


def test_a_frame_is_read_by_its_blocks_whose_columns_are_named(
    tmp_path: Path, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(path := tmp_path / "frame.h5", "w") as file:
        group = file.create_group("df")
        group["axis0"], group["axis1"] = np.array([b"energy", b"x", b"n", b"name"]), np.arange(10)
        group["block0_items"], group["block0_values"] = np.array([b"energy", b"x"]), np.arange(20.0).reshape(10, 2)
        group["block1_items"], group["block1_values"] = np.array([b"n"]), np.arange(10).reshape(10, 1)
        group["block2_items"] = np.array([b"name"])
        objects = group.create_dataset("block2_values", (1,), h5py.vlen_dtype(np.dtype("u1")))
        objects[0] = np.frombuffer(b"pickled", "u1")
    found = told(path)
    assert found.keys() == {"table"}
    (line,) = found["table"]
    assert "10 rows: block0_values has energy, x; block1_values has n; name cannot be read" in line["words"]
    alike(run(line)[4], {"block0_values": [8, 9], "block1_values": [4]})
    main(["inspect", str(path)])
    assert "in Python" not in capsys.readouterr().out


def files_of(folder: Path, number: int, *, label: bool, heights: int = 1) -> None:
    folder.mkdir()
    for i in range(number):
        with h5py.File(folder / f"case{i:02}.h5", "w") as file:
            file["image"] = np.full((8 + i % heights, 6), i, "f4")
            file["mask"] = np.zeros((8 + i % heights, 6), "u1")
            file["note"] = "text"
            if label:
                file["label"] = i % 3


def test_a_folder_of_files_with_scalars_has_a_sample_in_each(
    tmp_path: Path, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    files_of(tmp_path / "cases", 3, label=True)
    found = told(tmp_path / "cases")
    assert found.keys() == {"files"}
    (line,) = found["files"]
    assert line["words"] == "3 files, each a sample, without /note"
    data = run(line)
    assert len(data) == 3
    alike(data[2], {"image": np.full((8, 6), 2), "mask": np.zeros((8, 6)), "label": 2})
    main(["inspect", str(tmp_path / "cases")])
    assert "in Python" not in capsys.readouterr().out


def test_files_that_differ_in_shape_are_no_samples_and_that_is_said(tmp_path: Path, told: Told) -> None:
    files_of(tmp_path / "cases", 3, label=True, heights=2)
    (said,) = told(tmp_path / "cases")["files"]
    assert "cannot be read so: /image, /mask differ from file to file" in said["words"] and not said["python"]
    with h5py.File(tmp_path / "cases" / "case01.h5", "a") as file:
        del file["image"]
        file["image"] = np.ones((8, 6), "f4")
    said, rest = told(tmp_path / "cases")["files"]
    assert "cannot be read so: /mask differ" in said["words"] and "without /mask" in rest["words"]
    assert [int(sample["label"]) for sample in run(rest)] == [0, 1, 2]


@pytest.mark.parametrize("number", [3, 8])
def test_only_many_files_alike_may_be_samples_where_nothing_says_so(tmp_path: Path, told: Told, number: int) -> None:
    (tmp_path / "years").mkdir()
    for i in range(number):
        with h5py.File(tmp_path / "years" / f"{i}.h5", "w") as file:
            file["t2m"] = np.full((12, 4), i)
    found = told(tmp_path / "years")
    assert found.keys() == ({"files"} if number == 8 else set())
    assert not found or run(found["files"][0])[7]["t2m"].tolist() == [[7] * 4] * 12


def test_a_link_is_no_second_dataset(tmp_path: Path, told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(tmp_path / "scans.h5", "w") as file:
        file["raw/image"], file["raw/scan_id"] = np.zeros((32, 32, 32), "u1"), np.arange(32)
        file["latest"], file["volume"] = h5py.SoftLink("/raw"), h5py.SoftLink("/raw/image")
        file["other"] = h5py.SoftLink("/raw/scan_id")
    found = told(tmp_path / "scans.h5")
    assert {kind: len(lines) for kind, lines in found.items()} == {"keys": 1, "crops": 1}
    assert '"image": "/raw/image"' in found["crops"][0]["python"] and "volume" not in found["crops"][0]["python"]
    main(["inspect", str(tmp_path / "scans.h5")])
    shown = capsys.readouterr().out
    assert "2 datasets · 2 links" in shown.splitlines()[0]
    assert "in Python: H5Dataset(" in shown and '{"image": "/raw/image", "scan_id": "/raw/scan_id"}' in shown


def test_numbers_of_atoms_are_not_taken_for_places(tmp_path: Path, told: Told) -> None:
    with h5py.File(path := tmp_path / "one.h5", "w") as file:
        file["numbers"], file["x"], file["y"] = [1, 1, 6, 6, 8], np.zeros((8, 3)), np.zeros(5)
    assert not told(path)
