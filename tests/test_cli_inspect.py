"""`solar inspect` tells people and programs what a file holds and what reading it costs."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cf_kit
import h5py
import numpy as np
import pytest
from ready_kit import python

from solar import compress
from solar.cli import inspect as command
from solar.cli import main
from solar.cli.cost import advice, cost, costs_in_words
from solar.errors import LayoutError
from solar.io.hdf5.layouts import inspect
from solar.io.system import quantities


def test_every_dataset_is_shown_in_a_tree(zoo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", zoo]) == 0
    shown = capsys.readouterr().out
    with h5py.File(zoo) as file:
        assert all(name in shown for name in file)
    assert "10 × 6 × 5" in shown
    assert "shuffle + deflate 4 + fletcher32" in shown
    assert "\x1b" not in shown


def test_one_dataset_is_shown_in_detail(zoo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", zoo, "deflate"]) == 0
    shown = capsys.readouterr().out
    assert "samples share a chunk" in shown
    assert "contiguous" not in shown


def test_json_has_the_documented_keys_and_the_values_of_inspect(zoo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json", zoo]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"version", "files", "nbytes", "problems", "datasets", "links", "kinds", "imports", "shapes"}
    by_name = {dataset["name"]: dataset for dataset in told["datasets"]}
    deflate = by_name["/deflate"]
    assert deflate["shape"] == [10, 6, 5]
    assert deflate["chunk"] == [4, 4, 3]
    assert [one["name"] for one in deflate["filters"]] == ["shuffle", "deflate", "fletcher32"]
    assert deflate["cost"]["samples_per_chunk"] == 4
    assert deflate["cost"]["chunks_per_sample"] == 4
    assert by_name["/null"]["reader"] == "none"
    assert by_name["/text"]["reader"] == "h5py"


def test_links_that_lead_nowhere_are_listed_below_the_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros((4, 3))
        file["lost"] = h5py.SoftLink("/nowhere")
    assert main(["inspect", str(tmp_path / "a.h5")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "lost" in "".join(lines[lines.index("1 problem") :])


def test_an_error_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.h5").write_text("not HDF5")
    for file, line in itertools.product(("gone.h5", "text.h5"), ("inspect {}", "compress {} out.h5 --lossless")):
        assert main(line.format(tmp_path / file).split()) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("solar: ") and said.err.count("\n") == 1 and file in said.err
        assert "Errno" not in said.err


def test_names_from_the_file_cannot_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evil.h5"
    with h5py.File(path, "w") as file:
        file["a\x1b[31mred\n"] = np.zeros(3)
    assert main(["inspect", str(path)]) == 0
    assert "a\\x1b[31mred\\n" in capsys.readouterr().out


def test_output_is_ascii_where_the_terminal_has_no_more(zoo: str) -> None:
    code = "import sys; sys.stdout.reconfigure(encoding='ascii'); from solar.cli import main; sys.exit(main())"
    shown = subprocess.run([*python(), "-c", code, "inspect", zoo], capture_output=True, check=True).stdout
    assert b"10 x 6 x 5" in shown


def test_help_imports_neither_torch_nor_numpys_friends() -> None:
    program = "import sys, solar.cli\ntry: solar.cli.main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout.split()
    assert not {"torch", "h5py", "solar._native", "solar.io.hdf5.layouts"} & set(loaded)


def words_of(make: Callable[..., str], data: np.ndarray, **options: object) -> tuple[str, str]:
    layout = inspect(make("a.h5", x=(data, options)), "x")
    return costs_in_words(layout), advice(layout)


def test_contiguous_data_cost_one_read_per_sample(make: Callable[..., str]) -> None:
    assert words_of(make, np.zeros((64, 128, 128), "f4")) == ("One read of 64 KiB per sample.", "")


def test_a_chunk_of_many_samples_is_told_with_its_remedy(make: Callable[..., str]) -> None:
    told, what_to_do = words_of(make, np.zeros((256, 64, 64), "f4"), chunks=(64, 64, 64), compression="gzip")
    assert told == "64 samples share a chunk: reading one decodes 1 MiB for 16 KiB of values."
    assert "64 times the dataset" in what_to_do
    assert 'DataLoader(..., buffer="25%")' in what_to_do
    assert what_to_do.splitlines()[1:] == [
        "solar compress OLD NEW --chunk-samples 1 --field x:lossless",
        "h5repack -l /x:CHUNK=1x64x64 OLD NEW",
    ]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i2", "u8"])
def test_nothing_lossy_is_recommended_to_somebody_who_asked_for_no_bound(
    dtype: str, make: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"chunks": (64, 64, 64), "compression": "gzip"}
    path = make("a.h5", x=(np.zeros((256, 64, 64), dtype), options))
    assert main(["inspect", path, "x"]) == 0
    shown = capsys.readouterr().out
    assert "rel=" not in shown and "abs=" not in shown and "est is" not in shown
    assert ("x:lossless" in shown) == (dtype != "f2")  # which the codec does not take
    assert "h5repack" in shown


def test_the_commands_told_do_what_they_say(make: Callable[..., str], tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 9, (256, 64, 64)).astype("u2")
    path = make("many.h5", **{"a/x": (values, {"chunks": (64, 64, 64), "compression": "gzip"})})
    line = advice(inspect(path, "a/x")).splitlines()[1]
    arguments = shlex.split(line.replace("OLD", path).replace("NEW", str(tmp_path / "new.h5")))
    assert main([*arguments[1:], "--quiet"]) == 0
    new = inspect(str(tmp_path / "new.h5"), "/a/x")
    assert new.forms[0].chunk == (1, 64, 64)
    assert advice(new) == ""


def test_what_solar_compressed_is_named_and_small_chunks_of_it_need_no_advice(
    make: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make("plain.h5", x=np.random.default_rng(0).integers(0, 9, (4000, 16, 16)).astype("u2"))
    for samples, advised in ((16, False), (400, True)):
        compress(path, tmp_path / "small.h5", "lossless", chunk_samples=samples, force=True)
        assert main(["inspect", str(tmp_path / "small.h5")]) == 0
        shown = capsys.readouterr().out
        assert "· solar " in shown and "filter 333" not in shown
        assert ("solar compress ORIGINAL NEW" in shown) == ("→" in shown) == advised
        assert "h5repack" not in shown


def test_the_next_step_has_the_full_names(make: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.zeros((300, 64, 64))
    path = make("next.h5", **{"entry/data/counts": rows, "entry/truth/phase": rows[:, 0, 0], "other": np.zeros(7)})
    assert main(["inspect", path]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith(
        f'\nin Python: H5Dataset("{path}", {{"counts": "/entry/data/counts", "phase": "/entry/truth/phase"}})\n'
    )
    assert main(["inspect", make("twice.h5", **{"a/x": rows, "b/x": rows})]) == 0
    assert '{"a/x": "/a/x", "b/x": "/b/x"})' in capsys.readouterr().out


def test_packed_numbers_are_told_with_the_field_that_unpacks_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cf_kit.write(tmp_path / "radar.h5", only="velocity")
    with h5py.File(path, "a") as file:
        file["plain"] = np.zeros(cf_kit.SAMPLES)
        file["odd"] = np.zeros(cf_kit.SAMPLES)
        file["odd"].attrs["scale_factor"] = "no number"
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "contiguous  · packed: scale_factor 0.01, add_offset 0, missing -32768" in shown
    fields = '{"odd": "/odd", "plain": "/plain", "velocity": Field("/velocity", cf=True)}'
    assert shown.endswith(f'\nin Python: H5Dataset("{path}", {fields})\n')
    assert main(["inspect", "--json", str(path)]) == 0
    told = {one["name"]: one["packed"] for one in json.loads(capsys.readouterr().out)["datasets"]}
    assert told == {"/odd": "", "/plain": "", "/velocity": "scale_factor 0.01, add_offset 0, missing -32768"}


def test_a_large_file_without_filters_is_told_that_it_may_be_smaller(
    make: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make("large.h5", x=np.zeros((300, 64)))
    monkeypatch.setattr(command, "WORTH_COMPRESSING", 300 * 64 * 8)
    assert main(["inspect", path]) == 0
    assert f"solar compress --advise {path} " in capsys.readouterr().out
    monkeypatch.setattr(command, "WORTH_COMPRESSING", 300 * 64 * 8 + 1)
    assert main(["inspect", path]) == 0
    assert "compress" not in capsys.readouterr().out


def test_a_name_without_its_groups_finds_the_path_that_was_meant(
    make: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = make("deep.h5", **{"entry/data/counts": np.zeros((4, 2)), "entry/truth/phase": np.zeros(4)})
    for name, meant in (("counts", "counts"), ("data/count", "counts"), ("/entry/data/cuonts", "counts")):
        assert main(["inspect", path, name]) == 1
        assert capsys.readouterr().err.endswith(f"; did you mean /entry/data/{meant}?\n")
    assert main(["inspect", path, "wholly-different"]) == 1
    assert capsys.readouterr().err.endswith(
        "there is no wholly-different; it has /entry/data/counts, /entry/truth/phase\n"
    )
    with pytest.raises(LayoutError, match=r"there is no phase; did you mean /entry/truth/phase\?"):
        inspect([path, path], "phase")


def test_files_that_store_a_dataset_differently_are_counted(
    make: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.zeros((32, 4))
    for number in range(3):
        make(f"{number}.h5", x=(rows, {"chunks": (8, 4), "compression": "gzip"}) if number else rows, y=rows)
    assert main(["inspect", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("3 files, ") and "· 2 layouts ·" in shown.splitlines()[0]
    assert "2 layouts: 2 files chunks of 8 × 4, deflate 4; 1 file without chunks" in shown
    asked = inspect(str(tmp_path), "x")
    assert (cost(asked) or pytest.fail()).samples_per_chunk == 8  # as most of them are


def test_many_small_chunks_in_a_sample_are_told_with_their_remedy(make: Callable[..., str]) -> None:
    told, what_to_do = words_of(make, np.zeros((512, 128, 128), "f4"), chunks=(512, 8, 8))
    assert told == "One sample touches 256 chunks, about 256 B in each."
    assert "h5repack" in what_to_do


def test_a_sample_of_one_chunk_is_told_as_it_is(make: Callable[..., str]) -> None:
    told, what_to_do = words_of(make, np.zeros((64, 128, 128), "f4"), chunks=(1, 128, 128), compression="gzip")
    assert told == "Reading one sample decodes its one chunk, 64 KiB, nothing else."
    assert what_to_do == ""


def test_a_virtual_dataset_of_sources_side_by_side_is_told_to_be_slow(make: Callable[..., str], tmp_path: Path) -> None:
    source, large = make("source.h5", x=np.zeros((300, 1024), "f8")), h5py.VirtualLayout((300, 2048), "f8")
    for begin in (0, 1024):
        large[:, begin : begin + 1024] = h5py.VirtualSource(source, "x", (300, 1024))
    with h5py.File(tmp_path / "view.h5", "w") as file:
        file.create_virtual_dataset("x", large)
    layout = inspect(tmp_path / "view.h5", "x", cache=None)
    told = "one process, which is often slower than PyTorch with h5py: it is a virtual dataset, and its rows are made"
    assert told in costs_in_words(layout)
    assert "give the list of their files in place of this one: they are read natively" in advice(layout)
    listed = inspect([source, source], "x", cache=None)
    assert (listed.reader, advice(listed)) == ("direct", "")


def test_cost_counts_reads_and_waste(make: Callable[..., str]) -> None:
    layout = inspect(make("a.h5", x=(np.zeros((20, 10, 10)), {"chunks": (5, 4, 10), "compression": "lzf"})), "x")
    one = cost(layout)
    assert one is not None
    assert (one.samples_per_chunk, one.chunks_per_sample, one.reads) == (5, 3, 3)
    assert one.decoded_nbytes == 3 * 5 * 4 * 10 * 8
    assert one.waste == one.decoded_nbytes / 800


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        *[(0, "0 B"), (512, "512 B"), (1023, "1,023 B"), (65536, "64 KiB"), (1 << 20, "1 MiB"), (1500000, "1.4 MiB")],
        ((1 << 20) - 1, "1 MiB"),  # and not 1024 KiB
    ],
)
def test_sizes_are_short(nbytes: int, text: str) -> None:
    assert quantities.size(nbytes) == text


@pytest.mark.parametrize("folder", ["ptycho-petra3", "tomo-tooth", "field-femm", "neutron-chopper", "climate-ukesm1"])
def test_real_files_are_shown(shared: Path, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    for file in (shared / folder).iterdir():
        if file.suffix in (".h5", ".nxs", ".cxi", ".nc"):
            assert main(["inspect", str(file)]) == 0
            assert "direct" in capsys.readouterr().out


def test_colours_are_for_terminals_and_change_no_text(
    zoo: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    main(["inspect", zoo])
    plain = capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["inspect", zoo])
    coloured = capsys.readouterr().out
    assert "\x1b[32mdirect" in coloured
    assert re.sub("\x1b" + r"\[\d+m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    main(["inspect", zoo])
    assert capsys.readouterr().out == plain
