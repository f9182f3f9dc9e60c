"""Decoding on the device: bits as the host's decoder gives them, from Triton's interpreter; kernels that compile."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decode_kit import CASES, CPU, FORGED, GOLDEN, Case, rows_of
from numpy.typing import NDArray

from solar import _native
from solar.device.kernels import Decoder
from solar.errors import CodecError, PlanError

HERE = Path(__file__).parent
TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
OLD = TRITON.args[0] or tuple(map(int, importlib.metadata.version("triton").split(".")[:2])) < (3, 7)
INTERPRETER = pytest.mark.skipif(
    OLD, reason="no triton, or one before 3.7: its interpreter has no loops with new NumPy"
)

Interpreted = Callable[[str], NDArray[np.uint8]]
# Every block of a dense tile is some forty calls of the interpreter: of golden chunks alike in that, one is enough.
KERNELS = [name for name in CASES if name not in ("dense-xy", "dense-trained", "int16", "lattice-of-float32")]


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreted]:
    """What the kernels made of each case, case by case: all take minutes on a loaded machine.

    One process for all: Triton must know before it is imported.
    """
    folder = tmp_path_factory.mktemp("interpreted")
    command = [sys.executable, str(HERE / "device_decode_program.py"), str(folder), *FORGED, *KERNELS]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    with (
        (folder / "errors").open("w+") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as program,
    ):
        assert program.stdout is not None

        def result(name: str) -> NDArray[np.uint8]:
            while not (folder / f"{name}.npy").exists():
                assert program.stdout.readline(), (folder / "errors").read_text()[-4000:]
            return np.load(folder / f"{name}.npy")

        yield result
        program.kill()


@pytest.mark.slow
@INTERPRETER
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_give_the_bits_of_the_hosts_decoder(name: str, interpreted: Interpreted) -> None:
    assert np.array_equal(interpreted(name), CASES[name].here())


@INTERPRETER
@pytest.mark.parametrize("name", FORGED)
def test_a_chunk_that_lies_inside_its_tiles_spoils_only_its_own_sample(name: str, interpreted: Interpreted) -> None:
    # The program ends where anything behind the rows is read, and fails where anything beside the array is written.
    right, found = CASES[FORGED[name]].here(), interpreted(name)
    assert not np.array_equal(found, right[: len(found)])


def entries(chunk: bytes) -> list[tuple[int, int, int]]:
    """Of each tile: where it begins, its predictor, its coder."""
    said = _native.describe_codec(chunk)
    at = 80 + int.from_bytes(chunk[12:16], "little")
    tiles = sum(said[key] for key in ("raw", "constant", "pack", "dense"))
    each = (chunk[at + 12 * tile : at + 12 * tile + 12] for tile in range(tiles))
    return [(4 * int.from_bytes(one[:4], "little"), one[4], one[5]) for one in each]


def test_the_cases_hold_every_coder_and_predictor() -> None:
    chunks = [chunk for name in KERNELS for chunk in CASES[name].chunks]
    tiles = [(chunk, *entry) for chunk in chunks for entry in entries(chunk)]
    ways = {(coder, predictor) for _, _, predictor, coder in tiles}
    assert {coder for coder, _ in ways} == {0, 1, 2, 3}
    assert {(2, of) for of in (0, 1, 3, 7, 8)} | {(3, of) for of in (0, 1, 3, 7, 8)} <= ways
    assert any(chunk[at + 4] for chunk, at, _, coder in tiles if coder == 3), "no value is escaped"
    assert sum(_native.describe_codec(chunk)["kept"] for chunk in chunks) > 100
    assert {_native.describe_codec(chunk)["tables_inline"] for chunk in chunks} == {False, True}


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_the_host_rounds_halves_as_torch_does(name: str) -> None:
    case = CASES[name]
    wide = Case(case.dtype, case.shape, case.chunks).here().view(np.float32)
    want = torch.from_numpy(wide.copy()).to(getattr(torch, name)).view(torch.int16).numpy()
    got = case.here().view(np.int16)
    assert np.array_equal(got[~np.isnan(wide)], want[~np.isnan(wide)])
    assert torch.from_numpy(got.copy()).view(getattr(torch, name)).isnan().numpy().tolist() == np.isnan(wide).tolist()


def test_the_host_decodes_golden_chunks_through_the_same_door() -> None:
    index = json.loads((GOLDEN / "index.json").read_text())
    for name, of in index.items():
        if name.startswith("learned"):
            continue
        assert hashlib.sha256(CASES[name].here().tobytes()).hexdigest() == of["sha256"], name


def test_a_damaged_or_foreign_chunk_is_an_error_before_it_is_copied() -> None:
    case = CASES["tiles-in-space"]
    rows, lengths = rows_of(case.chunks)
    for at in (5, 90, lengths[1] // 2, lengths[1] - 1):
        damaged = rows.copy()
        damaged[1, at] ^= 4
        with pytest.raises(CodecError):
            case.decoder().inspect(damaged, lengths)
    with pytest.raises(CodecError):
        case.decoder().inspect(rows, lengths - 4)
    case = Case("float32", [3, 3], case.chunks)
    with pytest.raises(CodecError, match="expected"):
        case.decoder().inspect(rows, lengths)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("name", ["learned", "learned-inside"])
def test_a_chunk_of_the_learned_predictor_is_refused_in_words(name: str, checked: bool) -> None:
    of = json.loads((GOLDEN / "index.json").read_text())[name]
    case = Case(of["type"], of["shape"], [(GOLDEN / f"{name}.chunk").read_bytes()], bytes.fromhex(of["tables"]))
    with pytest.raises(CodecError, match="which solar no longer reads"):
        case.decoder().inspect(*rows_of(case.chunks), checked=checked)


def test_a_chunk_of_another_type_or_with_tables_of_another_file_is_an_error() -> None:
    case = CASES["dense-trained"]
    rows, lengths = rows_of(case.chunks)
    with pytest.raises(CodecError, match="tables are not those"):
        Case(case.dtype, case.shape, case.chunks).decoder().inspect(rows, lengths)
    with pytest.raises(CodecError, match="another type"):
        Case("int32", case.shape, case.chunks, case.tables).decoder().inspect(rows, lengths)


@pytest.mark.parametrize("name", CASES)
def test_of_checked_chunks_the_same_is_known_as_of_others(name: str) -> None:
    case = CASES[name]
    rows, lengths = rows_of(case.chunks)
    decoder = case.decoder()
    for _again in range(2):  # when tables are known, and when they are not
        one, two = (vars(decoder.inspect(rows, lengths, checked)) for checked in (False, True))
        assert all(np.array_equal(one[key], two[key]) for key in one)


def test_of_checked_chunks_is_asked_what_no_reading_does() -> None:
    trained, spaced = CASES["dense-trained"], CASES["tiles-in-space"]
    rows, lengths = rows_of(trained.chunks)
    with pytest.raises(CodecError, match="tables are not those"):
        Case(trained.dtype, trained.shape, trained.chunks).decoder().inspect(rows, lengths, checked=True)
    bare = rows.copy()
    bare[0, 64:72] = 0
    with pytest.raises(CodecError):  # by the whole check, whose first word is on the checksum
        trained.decoder().inspect(bare, lengths, checked=True)
    rows, lengths = rows_of(spaced.chunks)
    assert rows[0, 7] == 0
    rows[0, 48:56] = np.frombuffer(np.array(np.nan).tobytes(), np.uint8)
    with pytest.raises(CodecError):
        spaced.decoder().inspect(rows, lengths, checked=True)


def test_what_cannot_be_decoded_is_said_when_the_decoder_is_made() -> None:
    with pytest.raises(PlanError, match=r"cannot be decoded into torch\.float32"):
        Decoder(torch.float64, (3,), None, CPU, torch.float32)
    with pytest.raises(PlanError, match="only on CUDA devices and the host"):
        Decoder(torch.float32, (3,), None, torch.device("meta"), torch.float32)


def test_rows_and_arrays_of_the_wrong_form_are_refused() -> None:
    case = CASES["float64"]
    rows, lengths = rows_of(case.chunks)
    decoder = case.decoder()
    heads = decoder.inspect(rows, lengths)
    out = torch.empty(1, *case.shape, dtype=torch.float64)
    with pytest.raises(ValueError, match="multiples of 16"):
        decoder.decode(torch.zeros(1, 100, dtype=torch.uint8), lengths, heads, out)
    with pytest.raises(TypeError, match="rows of uint8"):
        decoder.decode(torch.from_numpy(rows).view(torch.int32), lengths, heads, out)
    with pytest.raises(ValueError, match="decodes on cpu, not from cpu into meta"):
        decoder.decode(torch.from_numpy(rows), lengths, heads, out.to("meta"))
    with pytest.raises(ValueError, match="is filled"):
        decoder.decode(torch.from_numpy(rows), lengths, heads, out.float())
    with pytest.raises(ValueError, match="inspected"):
        decoder.decode(torch.from_numpy(rows).repeat(2, 1), lengths, heads, out.repeat(2, 1, 1, 1))


EACH = ("entropy", "restore", "frequencies", "places")
COMPILED = [("entropy", 80), ("entropy", 90), ("restore", 80), ("restore", 90), ("frequencies", 90), ("places", 90)]


@pytest.mark.slow(but=["places-90"])
@TRITON
@pytest.mark.filterwarnings("ignore:AnnAssign:DeprecationWarning")  # Triton's own, on Python 3.14
@pytest.mark.parametrize(("name", "arch"), COMPILED)
def test_kernels_compile_for_a_gpu_and_keep_to_their_registers(
    name: str, arch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the interpreter runs might still be no program of a GPU. This needs none: triton brings the assembler.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    made = compiled(name, "cuda", arch, 32)
    assert f".target sm_{arch}" in made.asm["ptx"]
    assert ".ftz" not in made.asm["ptx"]  # denormal numbers are numbers
    used = resources(made.asm["cubin"], tmp_path)
    assert used["LOCAL"] == 0
    assert used["STACK"] <= 64  # bytes a thread that found no register: 0 on sm_90 by Triton 3.7, 56 by 3.6
    assert made.metadata.shared <= 48 << 10


@pytest.mark.slow(but=["places-gfx942"])
@TRITON
@pytest.mark.parametrize(("name", "arch"), [(name, arch) for name in EACH for arch in ("gfx90a", "gfx942")])
def test_kernels_compile_for_an_amd_gpu(name: str, arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    from triton.backends.amd.compiler import HIPOptions

    from solar.device.kernels import launch

    for cut in (launch.WARP, launch.WIDE["hip"], launch.PLACEMENTS["hip"]):  # a launch refuses what is not among these
        assert {key for key in cut if key.islower()} <= set(HIPOptions.__dataclass_fields__)
    made = compiled(name, "hip", arch, 64)
    assert f"amdhsa--{arch}" in made.asm["amdgcn"]
    assert made.asm["hsaco"][:4] == b"\x7fELF"


def compiled(name: str, kind: str, arch: int | str, lanes: int) -> Any:
    """A kernel, compiled for a GPU with the options that it is launched with there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from solar.device.kernels import entropy, launch, tables, tiles

    module, cut = {
        "entropy": (entropy, launch.WARP),
        "restore": (tiles, launch.WIDE[kind]),
        "frequencies": (tables, launch.WARP),
        "places": (tables, launch.PLACEMENTS[kind]),
    }[name]
    function = getattr(module, name)
    options = {key: value for key, value in cut.items() if key.islower()}
    constants = {"ITEMSIZE": 4, "SIZE": 4, "REAL": True, "HALF": 0, **cut}
    pointers = {"halves": "*i16"} | dict.fromkeys(("words", "sets", "found", "made", "scratch", "out"), "*i32")
    signature = {one: "constexpr" if one in constants else pointers.get(one, "i32") for one in function.arg_names}
    given = {(i,): constants[one] for i, one in enumerate(function.arg_names) if one in constants}
    source = ASTSource(function, signature, given)
    return triton.compile(source, target=GPUTarget(kind, arch, lanes), options=options)


def resources(cubin: bytes, folder: Path) -> dict[str, int]:
    """Registers and memory of a thread, as the assembler tells."""
    import triton

    (folder / "kernel.cubin").write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    told = subprocess.run([tool, "-res-usage", folder / "kernel.cubin"], capture_output=True, text=True, check=True)
    return {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", told.stdout)}
