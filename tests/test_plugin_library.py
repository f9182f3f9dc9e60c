"""The plug-in's library by itself, called as any libhdf5 calls it: without one, from many threads, with nonsense."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_codec import within

from solar.filters import FILTER, FOLDER, filter_values
from solar.io.codec.codec import Codec

REVERSE = 0x100


def field(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).cumsum(-1).astype(np.float32)


class FilterClass(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("id", ctypes.c_int),
        ("encodes", ctypes.c_uint),
        ("decodes", ctypes.c_uint),
        ("name", ctypes.c_char_p),
        ("can_apply", ctypes.c_void_p),
        ("set_local", ctypes.c_void_p),
        ("filter", ctypes.c_void_p),
    )


def entry() -> FilterClass:
    library = ctypes.CDLL(str(next(Path(FOLDER).iterdir())))
    library.H5PLget_plugin_info.restype = ctypes.POINTER(FilterClass)
    found: FilterClass = library.H5PLget_plugin_info().contents
    assert library.H5PLget_plugin_type() == 0
    return found


def filtered(flags: int, values: tuple[int, ...], data: bytes) -> bytes | None:
    """What the filter makes of a chunk, called as libhdf5 calls it; None: it failed, and left the chunk alone."""
    c = ctypes.CDLL(None)
    c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    call = ctypes.CFUNCTYPE(
        ctypes.c_size_t, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_void_p),
    )(entry().filter)  # fmt: skip
    buffer, room = ctypes.c_void_p(c.malloc(len(data))), ctypes.c_size_t(len(data))
    assert buffer.value
    ctypes.memmove(buffer, data, len(data))
    given_values = (ctypes.c_uint * len(values))(*values)
    nbytes = call(flags, len(values), given_values, len(data), ctypes.byref(room), ctypes.byref(buffer))
    try:
        if nbytes:
            assert room.value == nbytes
            return ctypes.string_at(buffer.value, nbytes)
        assert (room.value, ctypes.string_at(buffer.value, len(data))) == (len(data), data)
        return None
    finally:
        c.free(buffer)


def test_the_filter_has_the_number_that_solar_reads() -> None:
    filter_class = entry()
    assert (filter_class.version, filter_class.id, filter_class.encodes, filter_class.decodes) == (1, FILTER, 1, 1)


def test_the_filter_works_without_a_libhdf5_and_in_many_threads_at_once() -> None:
    samples = [field(40, 50, seed=i) for i in range(8)]
    values = filter_values(Codec("abs", 1e-2), samples[0].dtype, (40, 50))

    def there_and_back(sample: NDArray[np.float32]) -> bool:
        for _ in range(10):
            chunk = filtered(0, values, sample.tobytes())
            if chunk != Codec("abs", 1e-2).encode(sample):
                return False
            restored = filtered(REVERSE, values, chunk)
            if restored is None or not within(sample, np.frombuffer(restored, "f4").reshape(40, 50), 1e-2):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(there_and_back, samples))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 11), st.integers(0, 2**32 - 1)), max_size=30), st.binary(min_size=1))
def test_values_of_nonsense_are_refused_and_nothing_is_touched(values: list[int], data: bytes) -> None:
    assert filtered(REVERSE, tuple(values), data) is None  # no chunk of this many random bytes is sound
    made = filtered(0, (1, 0, 1, *values), data)
    if made is not None:  # the values happened to be right for these bytes
        assert filtered(REVERSE, (1, 0, 1, *values), made)


@pytest.mark.parametrize(
    "change",
    [{0: 2}, {1: 4}, {1: 2**32 - 1}, {3: 11}, {3: 0}, {4: 3}, {5: 2}, {7: 0x7FF00000}, {8: 33}, {8: 1}, {9: 41}],
)
def test_a_wrong_value_is_an_error(change: dict[int, int]) -> None:
    sample = field(40, 50)
    right = list(filter_values(Codec("abs", 1e-2), sample.dtype, (40, 50)))
    assert filtered(0, tuple(right), sample.tobytes())
    for at, value in change.items():
        right[at] = value
    assert filtered(0, tuple(right), sample.tobytes()) is None


def test_what_stands_behind_the_values_is_ignored() -> None:
    sample = field(40, 50)
    values = filter_values(Codec("abs", 1e-2), sample.dtype, (40, 50))
    chunk = filtered(0, values, sample.tobytes())
    assert chunk is not None
    assert filtered(REVERSE, (*values, 7, 8, 9), chunk) == filtered(REVERSE, (1, 0, 99, 5), chunk)


@pytest.mark.skipif(shutil.which("nm") is None, reason="no nm to list symbols with")
def test_the_library_shows_two_names_and_no_more() -> None:
    library = str(next(Path(FOLDER).iterdir()))
    command = ["nm", "--dynamic", "--defined-only", library]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[2::3]
    assert sorted(shown) == ["H5PLget_plugin_info", "H5PLget_plugin_type"]
