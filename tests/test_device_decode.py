"""Decoding on the device: bits as the host's decoder gives them, from Triton's interpreter; kernels that compile."""

from __future__ import annotations

import hashlib
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
from numpy.typing import NDArray

from solar import _native
from solar.errors import CodecError, PlanError
from solar.gpu.kernels import Decoder
from solar.io.compress.codec import Codec

HERE = Path(__file__).parent
GOLDEN = HERE / "golden" / "codec"
CPU = torch.device("cpu")
TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
SLACK = 32

Interpreted = Callable[[str], NDArray[np.uint8]]


def rows_of(chunks: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Chunks as a reader hands them on: a row each, as long as the longest and some more, the rest zero."""
    stride = -(-max(map(len, chunks)) // 16) * 16
    rows = np.zeros((len(chunks), stride), np.uint8)
    for row, chunk in zip(rows, chunks, strict=True):
        row[: len(chunk)] = np.frombuffer(chunk, np.uint8)
    return rows, np.array([len(chunk) for chunk in chunks])


class Case:
    """Chunks of one field, and what they are decoded into."""

    def __init__(self, dtype: Any, shape: list[int], chunks: list[bytes], tables: bytes = b"", out: str = "") -> None:
        self.dtype, self.shape, self.chunks, self.tables = np.dtype(dtype).name, list(shape), chunks, tables
        self.out = out or self.dtype
        self.flips: list[tuple[int, int]] = []

    def here(self) -> NDArray[np.uint8]:
        """The bytes as the host's decoder gives them."""
        dtype, out = getattr(torch, self.dtype), getattr(torch, self.out)
        decoder = Decoder(dtype, tuple(self.shape), self.tables, CPU, out)
        rows, lengths = rows_of(self.chunks)
        batch = torch.empty(len(rows), *self.shape, dtype=out)
        decoder.decode(torch.from_numpy(rows), lengths, decoder.inspect(rows, lengths), batch)
        return batch.view(-1).view(torch.uint8).numpy()


def encoded(array: NDArray[Any], *codecs: Codec, tables: bytes = b"", out: str = "") -> Case:
    return Case(array.dtype, list(array.shape), [codec.encode(array) for codec in codecs], tables, out)


def golden() -> dict[str, Case]:
    index = json.loads((GOLDEN / "index.json").read_text())
    index = {name: of for name, of in index.items() if not name.startswith("learned")}  # no kernel knows them
    read = {name: (GOLDEN / f"{name}.chunk").read_bytes() for name in index}
    return {
        name: Case(of["type"], of["shape"], [read[name]], bytes.fromhex(of["tables"])) for name, of in index.items()
    }


def special(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A smooth field with everything that is kept bit for bit: alone, in a row, and in a block."""
    rng = np.random.default_rng(len(shape))
    field = np.asarray(rng.normal(size=shape).cumsum(-1), np.float32)
    marks = np.array([0x7FC00001, 0xFFA12345, 0x7F800000, 0xFF800000, 0x80000000, 0x00000007], np.uint32)
    field.view(np.uint32).flat[rng.integers(0, field.size, 40)] = rng.choice(marks, 40)
    field.reshape(-1)[field.size // 3 : field.size // 2] = np.nan
    return field


def made() -> dict[str, Case]:
    rng = np.random.default_rng(7)
    space = np.asarray(rng.normal(size=(18, 14, 70)).cumsum(0).cumsum(1).cumsum(2), np.float32)
    plane = np.asarray(rng.normal(size=(131, 150)).cumsum(0).cumsum(1), np.float32)
    small = np.ascontiguousarray(space[:, :5, :7])
    trained = Codec("abs", 0.01, "dense").trained([small])
    doubles = space[:17, :9, :9].astype(np.float64) * 1e-9
    heavy = np.asarray(rng.standard_t(1.3, 500) * 30, np.float32)
    counts = rng.poisson(3, (2, 3, 2, 9, 5)).astype(np.uint16)
    pack = [Codec("abs", 0.01, "pack", predictor) for predictor in ("none", "x", "xy", "xyz", "interpolation")]
    halves = special((3, 40, 33))
    halves.reshape(-1)[:12] = [65519, 65520, 6e-8, 2.98e-8, 2.99e-8, 1e-7, 6.1e-5, 70000, -65520, 2049, 2051, -1e-9]
    masked, flat = np.where(plane > 0, np.float32(-9999), plane), np.where(plane > 0, np.float32(-9999), np.float32(7))
    missing = np.float32(-9999).tobytes()
    cases = {
        "marks": encoded(masked, *(Codec("abs", 0.01, coder, marks=missing) for coder in ("pack", "dense"))),
        "marks-over-a-constant": encoded(flat, Codec("abs", 0.01, marks=missing)),
        "tiles-in-space": encoded(space, pack[1], *pack[3:]),
        "tiles-in-a-plane": encoded(plane, pack[2], pack[4]),
        "tiles-of-a-line": encoded(special((16500,)), Codec("abs", 0.01, "pack", "x")),
        "five-axes-of-counts": encoded(counts, Codec("lossless"), Codec("abs", 2, "pack", "xyz")),
        "bytes": encoded((counts % 7).astype(np.int8), Codec("lossless", 0.0, "pack"), Codec("abs", 1)),
        "beyond-32-bits": encoded(np.asarray([2**64 - 1, 0, 2**63, 5] * 9, np.uint64), Codec("lossless")),
        "doubles": encoded(doubles, Codec("abs", 1e-12, "pack", "xyz"), Codec("abs", 1e-12, "pack", "interpolation"),
                           Codec("lossless")),
        "special-doubles": encoded(np.where(doubles > 0, np.nan, doubles), Codec("abs", 1e-10, "pack", "xy")),
        "float16": encoded(halves, Codec("abs", 1e-3, "pack"), Codec("lossless", 0.0, "pack"), out="float16"),
        "bfloat16": encoded(halves, Codec("abs", 1e-3, "pack"), Codec("lossless", 0.0, "pack"), out="bfloat16"),
        "raw-to-half": encoded(np.frombuffer(rng.bytes(4000), np.float32), Codec("lossless"), out="float16"),
        "constant-to-half": encoded(np.full((9, 9), 1 / 3, np.float32), Codec("lossless"), out="bfloat16"),
        "tables-of-all-kinds": encoded(
            small, trained, Codec("abs", 0.01, "dense", "interpolation"), Codec("abs", 10, "dense", "xyz"),
            Codec("abs", 0.01, "pack"), tables=trained.tables,
        ),
        "escapes-and-lowest-bits": encoded(heavy, Codec("abs", 0.5, "dense", "none"), Codec("abs", 1e-5, "dense", "x")),
        "patches": encoded(space[:9, :13, :21], *(Codec("abs", 1.0, coder, "patches") for coder in ("pack", "dense"))),
        "patches-of-a-plane": encoded(plane[:45, :51], Codec("abs", 1.0, "pack", "patches")),
        "patches-of-noise": encoded(special((21, 30)), Codec("abs", 2.0, "pack", "patches")),
        "one-value": encoded(np.float32(2.5).reshape(()), Codec("abs", 0.1)),
    }  # fmt: skip
    return cases


CASES = golden() | made()
# Every block of a dense tile is some forty calls of the interpreter: of golden chunks alike in that, one is enough.
KERNELS = [name for name in CASES if name not in ("dense-xy", "dense-trained", "int16", "lattice-of-float32")]
FORGED = {"forged-pack": "tiles-in-space", "forged-dense": "tables-of-all-kinds"}


def forged(case: Case, seed: int) -> Case:
    """The same, with bytes changed inside the first chunk's tiles, where only the checksum would tell."""
    rng = np.random.default_rng(seed)
    chunk = case.chunks[0]
    tables, first_tile = 80 + int.from_bytes(chunk[12:16], "little"), 0
    first_tile = 4 * int.from_bytes(chunk[tables : tables + 4], "little")
    broken = Case(case.dtype, case.shape, [chunk], case.tables)
    at = {*range(first_tile, first_tile + 8), *rng.integers(first_tile, len(chunk) - 8, 60).tolist()}
    broken.flips = [(one, int(rng.integers(1, 256))) for one in sorted(at)]
    return broken


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreted]:
    """What the kernels made of each case, case by case: all take minutes on a loaded machine.

    One process for all: Triton must know before it is imported.
    """
    folder = tmp_path_factory.mktemp("interpreted")
    cases = {name: forged(CASES[of], len(name)) for name, of in FORGED.items()}
    cases |= {name: CASES[name] for name in KERNELS}
    for name, case in cases.items():
        rows, lengths = rows_of(case.chunks)
        np.savez(folder / f"{name}.npz", rows=rows, lengths=lengths)
    told = [
        {
            "name": name,
            "tables": case.tables.hex(),
            **{key: getattr(case, key) for key in ("dtype", "shape", "out", "flips")},
        }
        for name, case in cases.items()
    ]
    (folder / "cases.json").write_text(json.dumps(told))
    command = [sys.executable, str(HERE / "device_decode_program.py"), str(folder)]
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
@TRITON
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_give_the_bits_of_the_hosts_decoder(name: str, interpreted: Interpreted) -> None:
    assert np.array_equal(interpreted(name), CASES[name].here())


@TRITON
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


def decoder_of(case: Case, out: str = "") -> Decoder:
    types = (getattr(torch, name) for name in (case.dtype, out or case.out))
    dtype, out_dtype = types
    return Decoder(dtype, tuple(case.shape), case.tables, CPU, out_dtype)


def test_a_damaged_or_foreign_chunk_is_an_error_before_it_is_copied() -> None:
    case = CASES["tiles-in-space"]
    rows, lengths = rows_of(case.chunks)
    for at in (5, 90, lengths[1] // 2, lengths[1] - 1):
        damaged = rows.copy()
        damaged[1, at] ^= 4
        with pytest.raises(CodecError):
            decoder_of(case).inspect(damaged, lengths)
    with pytest.raises(CodecError):
        decoder_of(case).inspect(rows, lengths - 4)
    case = Case("float32", [3, 3], case.chunks)
    with pytest.raises(CodecError, match="expected"):
        decoder_of(case).inspect(rows, lengths)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("name", ["learned", "learned-inside"])
def test_what_was_learned_is_refused_in_words(name: str, checked: bool) -> None:
    of = json.loads((GOLDEN / "index.json").read_text())[name]
    case = Case(of["type"], of["shape"], [(GOLDEN / f"{name}.chunk").read_bytes()], bytes.fromhex(of["tables"]))
    with pytest.raises(CodecError, match="which the host alone decodes"):
        decoder_of(case).inspect(*rows_of(case.chunks), checked=checked)


def test_a_chunk_of_another_type_or_with_tables_of_another_file_is_an_error() -> None:
    case = CASES["dense-trained"]
    rows, lengths = rows_of(case.chunks)
    with pytest.raises(CodecError, match="tables are not those"):
        decoder_of(Case(case.dtype, case.shape, case.chunks)).inspect(rows, lengths)
    with pytest.raises(CodecError, match="another type"):
        decoder_of(Case("int32", case.shape, case.chunks, case.tables)).inspect(rows, lengths)


@pytest.mark.parametrize("name", CASES)
def test_of_checked_chunks_the_same_is_known_as_of_others(name: str) -> None:
    case = CASES[name]
    rows, lengths = rows_of(case.chunks)
    decoder = decoder_of(case)
    for _again in range(2):  # when tables are known, and when they are not
        one, two = (vars(decoder.inspect(rows, lengths, checked)) for checked in (False, True))
        assert all(np.array_equal(one[key], two[key]) for key in one)


def test_of_checked_chunks_is_asked_what_no_reading_does() -> None:
    trained, spaced = CASES["dense-trained"], CASES["tiles-in-space"]
    rows, lengths = rows_of(trained.chunks)
    with pytest.raises(CodecError, match="tables are not those"):
        decoder_of(Case(trained.dtype, trained.shape, trained.chunks)).inspect(rows, lengths, checked=True)
    bare = rows.copy()
    bare[0, 64:72] = 0
    with pytest.raises(CodecError):  # by the whole check, whose first word is on the checksum
        decoder_of(trained).inspect(bare, lengths, checked=True)
    rows, lengths = rows_of(spaced.chunks)
    assert rows[0, 7] == 0
    rows[0, 48:56] = np.frombuffer(np.array(np.nan).tobytes(), np.uint8)
    with pytest.raises(CodecError):
        decoder_of(spaced).inspect(rows, lengths, checked=True)


def test_what_cannot_be_decoded_is_said_when_the_decoder_is_made() -> None:
    with pytest.raises(PlanError, match=r"cannot be decoded into torch\.float32"):
        Decoder(torch.float64, (3,), None, CPU, torch.float32)
    with pytest.raises(PlanError, match="only on CUDA devices and the host"):
        Decoder(torch.float32, (3,), None, torch.device("meta"), torch.float32)


def test_rows_and_arrays_of_the_wrong_form_are_refused() -> None:
    case = CASES["float64"]
    rows, lengths = rows_of(case.chunks)
    decoder = decoder_of(case)
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
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from solar.gpu.kernels import entropy, launch, tables, tiles

    module, cut = {
        "entropy": (entropy, launch.WARP),
        "restore": (tiles, launch.WIDE["cuda"]),
        "frequencies": (tables, launch.WARP),
        "places": (tables, launch.PLACEMENTS["cuda"]),
    }[name]
    function = getattr(module, name)
    options = {key: value for key, value in cut.items() if key.islower()}
    constants = {"ITEMSIZE": 4, "SIZE": 4, "REAL": True, "HALF": 0, **cut}
    pointers = {"halves": "*i16"} | dict.fromkeys(("words", "sets", "found", "made", "scratch", "out"), "*i32")
    signature = {one: "constexpr" if one in constants else pointers.get(one, "i32") for one in function.arg_names}
    given = {(i,): constants[one] for i, one in enumerate(function.arg_names) if one in constants}
    source = ASTSource(function, signature, given)
    made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    assert f".target sm_{arch}" in made.asm["ptx"]
    assert ".ftz" not in made.asm["ptx"]  # denormal numbers are numbers
    used = resources(made.asm["cubin"], tmp_path)
    assert used["LOCAL"] == 0
    assert used["STACK"] <= (64 if arch == 80 else 0)  # bytes a thread that found no register
    assert made.metadata.shared <= 48 << 10


def resources(cubin: bytes, folder: Path) -> dict[str, int]:
    """Registers and memory of a thread, as the assembler tells."""
    import triton

    (folder / "kernel.cubin").write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    told = subprocess.run([tool, "-res-usage", folder / "kernel.cubin"], capture_output=True, text=True, check=True)
    return {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", told.stdout)}
