"""Field: what it makes of a batch is what numpy makes of it, to the bit, and it refuses what makes no sense."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import pickle
import re
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kit import same
from numpy.typing import NDArray

import solar
from solar import Field, _native
from solar.samples import field as field_module

Array = NDArray[Any]

NUMBERS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
OTHERS = ["c8", "c16", ">i2", ">f4", "S3", "U2", "V5", "M8[s]", [("a", "i2"), ("b", "f8")]]
IMAGE = (64, 48)


def by_numpy(field: Field, batch: Array) -> Array:
    """The definition, sample by sample."""
    _, dtype = field.shape_of(batch.shape[1:], batch.dtype)
    samples = []
    with np.errstate(all="ignore"):
        for x in batch:
            x = np.asarray(x)  # a row of text is a str, which has no axes
            x = (x if field.shape is None else x.reshape(field.shape))[field.select or ()]
            x = (x if field.axes is None else x.transpose(field.axes)).astype(dtype)
            x = x if field.mean is None else x - field.mean.astype(dtype)
            x = x if field.std is None else x / field.std.astype(dtype)
            samples.append(x)
    if not samples:
        return np.empty((0, *field.shape_of(batch.shape[1:], batch.dtype)[0]), dtype)
    return np.stack(samples).astype(dtype, order="C", copy=False)


def check(field: Field, batch: Array) -> Array:
    made = field.convert(batch)
    assert same(made, by_numpy(field, batch)), field
    assert (made.shape[1:], made.dtype) == field.shape_of(batch.shape[1:], batch.dtype)
    assert made.flags.c_contiguous or made is batch
    return made


def counted(shape: tuple[int, ...], dtype: Any = "u2") -> Array:
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


# --- against numpy ----


@st.composite
def cuts(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(draw(st.just(slice(None)) | st.slices(size)) for size in shape[: draw(st.integers(0, len(shape)))])


@st.composite
def terms(draw: st.DrawFn, shape: tuple[int, ...], smallest: float) -> Array:
    varying = [size if draw(st.booleans()) else 1 for size in shape]
    trailing = tuple(varying[draw(st.integers(0, len(shape))) :])
    return draw(hnp.arrays("f8", trailing, elements=st.floats(smallest, 1e4, width=32)))


@st.composite
def conversions(draw: st.DrawFn, dtypes: list[Any], normalise: bool) -> tuple[Field, Array]:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=9))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    samples = draw(st.integers(0, 3))
    # Bytes of every kind: quiet and signalling NaN, infinity, denormal and negative zero among them.
    seed = draw(st.integers(0, 2**32 - 1))
    nbytes = samples * int(np.prod(shape)) * dtype.itemsize
    if dtype.kind in "UMb":
        batch = np.random.default_rng(seed).integers(0, 2, (samples, *shape)).astype(dtype)
    else:
        batch = np.frombuffer(np.random.default_rng(seed).bytes(nbytes), dtype).reshape(samples, *shape)
    given = draw(st.none() | st.sampled_from([(-1,), (1, -1), (shape[0], -1, 1) if shape else ()]))
    given = None if given is None else batch.reshape(samples, *given).shape[1:] if samples else shape
    shape = shape if given is None else given
    select = draw(st.none() | cuts(shape))
    axes = draw(st.none() | st.permutations(range(len(shape))).map(tuple))
    to, mean, std = None, None, None
    if normalise:
        come, _ = Field("x", shape=given, select=select, axes=axes).shape_of(batch.shape[1:], dtype)
        to = draw(st.sampled_from([None, "f4", "f8"]))
        mean, std = draw(st.none() | terms(come, -1e4)), draw(st.none() | terms(come, 0.125))
    return Field("x", shape=given, select=select, axes=axes, dtype=to, mean=mean, std=std), batch


@given(conversions([name for name in NUMBERS if name != "f2"], normalise=True))
@settings(deadline=None)
def test_numbers_come_as_numpy_would_have_them(case: tuple[Field, Array]) -> None:
    check(*case)


@given(conversions(NUMBERS + OTHERS, normalise=False))
@settings(deadline=None)
def test_anything_can_be_sliced_and_transposed(case: tuple[Field, Array]) -> None:
    check(*case)


@pytest.mark.parametrize("to", ["f4", "f8"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_large_samples_of_every_type_are_normalised_to_the_bit(dtype: str, to: str) -> None:
    rng = np.random.default_rng(3)
    stored = np.dtype(dtype)
    images = rng.integers(0, 2 if dtype == "?" else 120, (2, *IMAGE, 3)).astype(stored)
    if stored.kind in "iu":
        images[0, 0, :2] = np.array([[np.iinfo(stored).max], [np.iinfo(stored).min]], stored)
    if stored.kind == "f":
        special = [np.nan, np.inf, -np.inf, -0.0, np.finfo(stored).smallest_subnormal, np.finfo(stored).max]
        images[0, :2, 0] = np.resize(special, (2, 3))
    for mean, std in [(7.5, 3), (rng.random(3), rng.random(3) + 1), (rng.random((*IMAGE, 3)), None), (None, 0.1)]:
        check(Field("x", dtype=to, mean=mean, std=std), images)
    for mean in (None, 0.25, rng.random((1, 40, 1))):
        check(Field("x", select=(slice(3, 40), slice(44, 4, -1)), dtype=to, mean=mean), images[:, :, :, :1])
    for mean in (0.25, rng.random((3, 1, 1)), rng.random((3, *IMAGE))):
        check(Field("x", axes=(2, 0, 1), dtype=to, mean=mean, std=mean + 1), images)
        check(Field("x", axes=(1, 2, 0), dtype=to, mean=mean, std=3), images.transpose(0, 2, 3, 1).copy())


def test_samples_are_given_another_shape_and_nothing_is_copied() -> None:
    rows = counted((5, 4, 6))
    made = Field("x", shape=(2, 12)).convert(rows)
    assert np.array_equal(made, rows.reshape(5, 2, 12)) and np.may_share_memory(made, rows)
    images = check(Field("x", shape=[3, 4, 2], axes=(1, 2, 0), mean=2), rows)
    assert images.shape == (5, 4, 2, 3)
    assert Field("x", shape=()).convert(rows[:, :1, :1]).tolist() == rows[:, 0, 0].tolist()


def test_numbers_are_narrowed_to_halves_as_numpy_narrows_them() -> None:
    halves = np.arange(1 << 16, dtype="u2").view("f2").astype("f4")
    with np.errstate(invalid="ignore", over="ignore"):
        edges = np.concatenate([np.nextafter(halves, sign * np.float32(np.inf)) for sign in (1, -1)])
        middles = (halves[:-1] + halves[1:]) / 2  # ties
    rng = np.random.default_rng(5)
    found = rng.integers(0, 1 << 32, 1 << 20, np.uint32).view("f4")  # with NaNs of all kinds
    wholes = [
        rng.integers(-(1 << 17), 1 << 17, 4096).astype(kind) for kind in ("i1", "u1", "i2", "u2", "i4", "i8", "u8")
    ]
    for values in (
        halves,
        edges,
        middles,
        found,
        np.array([65504, 65519.996, 65520, -65520], "f4"),
        *wholes,
        wholes[0] > 0,
    ):
        field = Field("x", dtype="f2")
        assert field._converted((), values.dtype).native
        with np.errstate(all="ignore"):
            expected = values.astype("f2").view("u2")
        np.testing.assert_array_equal(field.convert(values).view("u2"), expected)
        pairs = values[: len(values) // 2 * 2].reshape(1, -1, 2)
        turned = Field("x", dtype="f2", axes=(1, 0)).convert(pairs)
        np.testing.assert_array_equal(turned[0].T.reshape(-1).view("u2"), expected[: pairs.size])
    assert not Field("x", dtype="f2")._converted((), np.dtype("f8")).native


def test_every_half_is_widened_as_numpy_widens_it() -> None:
    halves = np.arange(1 << 16, dtype="u2").view("f2")
    signalling = np.isnan(halves) & (halves.view("u2") & 0x200 == 0)  # numpy treats these as its processor does
    for dtype in ("f4", "f8"):
        check(Field("x", dtype=dtype), halves[~signalling])
        assert np.isnan(Field("x", dtype=dtype).convert(halves[signalling])).all()


def test_a_boolean_is_true_whatever_byte_the_file_has_for_it() -> None:
    stored = np.array([0, 1, 2, 255], "u1").view("?")
    assert check(Field("x", dtype="f4"), stored).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ({"dtype": "i2"}, "f4"),
        ({"dtype": "f2"}, "f8"),
        ({"dtype": "?"}, "i4"),
        ({"mean": 1.5, "std": 3}, "f2"),
        ({"mean": 1.5, "std": 3}, ">f4"),
        ({"mean": 1 + 2j, "std": 2j}, "c8"),
        ({"dtype": "c8", "mean": 1j}, "i4"),
        ({"dtype": "f4"}, "S3"),
        ({"dtype": "f4", "mean": 3}, ">u2"),
        ({"dtype": "f8", "std": 3}, "g"),
    ],
)
def test_what_native_code_does_not_do_numpy_does(options: dict[str, Any], dtype: str) -> None:
    made = check(Field("x", select=slice(1, 5), axes=(1, 0), **options), counted((3, 6, 4), dtype))
    assert made.dtype.isnative


def test_objects_are_sliced_too() -> None:
    text = np.array([["a", None], ["b", "ccc"]], object)
    assert Field("x", select=slice(1, None)).convert(text).tolist() == [[None], ["ccc"]]


def test_overflow_gives_infinity_and_no_warning() -> None:
    assert Field("x", dtype="f4").convert(np.array([1e300])).tolist() == [np.inf]
    assert Field("x", dtype="f2").convert(np.array([1e300])).tolist() == [np.inf]


def test_a_batch_may_be_unaligned_strided_and_read_only() -> None:
    stored = np.frombuffer(bytes(range(200)) + bytes(1), "u1")[1:].view("u2").reshape(10, 10)[::-2, 1::3]
    assert not stored.flags.aligned and not stored.flags.writeable
    check(Field("x", mean=3), stored)
    check(Field("x", select=slice(None, None, -1)), stored)


def test_where_there_is_nothing_to_do_the_batch_itself_comes() -> None:
    batch = counted((3, 4))
    assert Field("x").convert(batch) is batch
    assert Field("x", dtype="u2").convert(batch) is batch
    assert Field("x", select=slice(None)).convert(batch) is not batch


def test_batches_are_converted_in_many_threads_at_once() -> None:
    field, batch = Field("x", axes=(1, 0), mean=counted((48, 64)), std=2), counted((8, *IMAGE))
    wanted, made = by_numpy(field, batch), [None] * 8

    def convert(i: int) -> None:
        made[i] = field.convert(batch + np.uint16(i))

    threads = [threading.Thread(target=convert, args=(i,)) for i in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(values, wanted + np.float32(i / 2)) for i, values in enumerate(made))


# --- out ----


def test_a_batch_is_written_where_it_shall_go() -> None:
    field, batch = Field("x", select=slice(1, 3), mean=1), counted((4, 5))
    out = np.full((4, 2), -1, "f4")
    assert field.convert(batch, out) is out
    assert same(out, by_numpy(field, batch))
    plain = np.zeros((4, 5), "u2")
    assert same(Field("x").convert(batch, plain), batch)


def test_a_place_that_will_not_do_is_refused() -> None:
    field, batch = Field("x", mean=1), counted((4, 5), "f4")
    for out, words in [
        (np.empty((4, 4), "f4"), r"must be of shape \(4, 5\) and float32; it is of shape \(4, 4\)"),
        (np.empty((4, 5), "f8"), "float64"),
        (np.empty((5, 4), "f4").T, "contiguous"),
        (batch, "share memory"),
        (np.broadcast_to(np.float32(0), (4, 5)), "contiguous"),
    ]:
        with pytest.raises(ValueError, match=words):
            field.convert(batch, out)
    with pytest.raises(TypeError, match="numpy array"):
        field.convert(batch, [0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="axis 0"):
        field.convert(np.float32(3))  # type: ignore[arg-type]


# --- types ----


def test_the_dtype_stays_unless_numbers_that_are_not_floating_are_normalised() -> None:
    for dtype, plain, normalised in [("u2", "u2", "f4"), ("?", "?", "f4"), ("f2", "f2", "f2"), ("f8", "f8", "f8")]:
        assert Field("x", select=slice(2)).shape_of((4,), dtype) == ((2,), np.dtype(plain))
        assert Field("x", std=2).shape_of((4,), dtype) == ((4,), np.dtype(normalised))
        assert Field("x", std=2, dtype="f8").shape_of((4,), dtype) == ((4,), np.dtype("f8"))
    assert Field("x", std=2).shape_of((4,), ">f4")[1].isnative


def test_the_axes_of_an_array_type_are_axes_of_the_sample() -> None:
    assert Field("x", axes=(1, 0)).shape_of((4,), np.dtype(("f4", (3,)))) == ((3, 4), np.dtype("f4"))


# --- what is refused ----


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"select": 3}, TypeError, "a slice, or a tuple of slices, not 3"),
        ({"select": (slice(2), 1)}, TypeError, r"not 1; one index i is slice\(i, i \+ 1\)"),
        ({"select": slice(0.5)}, TypeError, "not made of integers"),
        ({"select": slice(None, None, 0)}, ValueError, "steps by 0"),
        (
            {"select": (None, slice(3))},
            TypeError,
            "select adds none; all of an axis is slice",
        ),
        ({"shape": 3}, TypeError, r"a tuple of lengths, such as \(3, 32, 32\), not 3"),
        ({"shape": (2, 0.5)}, TypeError, "are not integers"),
        ({"shape": (2, -1)}, ValueError, "say how long each axis is"),
        ({"axes": 1}, TypeError, "tuple of integers"),
        ({"axes": (0, "a")}, TypeError, "not integers"),
        ({"axes": (0, 0, 1)}, ValueError, r"axes=\(0, 0, 1\): each of the 3 axes"),
        ({"axes": (1, 2)}, ValueError, "each of the 2 axes"),
        ({"axes": (0, -2)}, ValueError, "each of the 2 axes"),
        ({"dtype": "nonsense"}, TypeError, "nonsense"),
        ({"dtype": object}, ValueError, "samples are cast to"),
        ({"dtype": "S"}, ValueError, "of fixed length"),
        ({"dtype": ("f4", (2,))}, ValueError, "samples are cast to"),
        ({"mean": "much"}, TypeError, "mean must be a number"),
        ({"std": [[1, 2], [0, 3]]}, ValueError, "std has zeros"),
        ({"mean": 1, "dtype": "i4"}, ValueError, "int32 cannot hold; use dtype='float32'"),
    ],
)
def test_nonsense_is_refused_on_making(options: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        Field("x", **options)


def test_a_field_is_made_of_a_name() -> None:
    with pytest.raises(TypeError, match="name of a dataset, not of int"):
        Field(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "shape", "dtype", "words"),
    [
        ({"axes": (2, 0, 1)}, (256, 256), "u2", "axes=(2, 0, 1) are three axes; a sample of /x is (256, 256)"),
        ({"axes": (0,)}, (), "u2", "axes=(0,) is one axis; a sample of /x is ()"),
        ({"shape": (3, 2)}, (7,), "u2", "shape=(3, 2) has 6 values; a sample of /x is (7,), which has 7"),
        ({"select": (slice(2), slice(3))}, (4,), "u2", "select=(slice(None, 2), slice(None, 3)): two slices; "
         "a sample of /x is (4,)"),
        ({"mean": [1, 2, 3]}, (3, 9, 8), "u1", "against samples of /x, which come as (3, 9, 8); for one number along "
         "axis 0 reshape it to (3, 1, 1)"),
        ({"std": np.ones((2, 1))}, (3,), "u1", "std of shape (2, 1) does not broadcast"),
        ({"mean": [1, 2]}, (1,), "u1", "does not broadcast"),
        ({"mean": 1}, (3,), "S3", "mean and std are for numbers; /x is of dtype |S3"),
        ({"mean": 1j}, (3,), "f4", "mean is of dtype complex128, /x comes as float32"),
        ({"dtype": "f4"}, (3,), "c8", "lose the imaginary part"),
        ({"dtype": "f4"}, (3,), [("a", "i4")], "cannot be cast to float32"),
        ({"mean": 1e300}, (3,), "f4", "mean has values that float32 cannot hold; give dtype='float64'"),
        ({"std": 1e-300}, (3,), "f4", "std has values that float32 rounds to 0"),
    ],
)  # fmt: skip
def test_samples_that_do_not_fit_are_refused_by_name(
    options: dict[str, Any], shape: tuple[int, ...], dtype: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Field("/x", **options).shape_of(shape, dtype)


def test_native_code_checks_what_it_is_given() -> None:
    batch, out = counted((3, 4)), np.empty((3, 4), "f4")
    for arguments, words in [
        ((batch, out[:2]), "same shape"),
        ((batch, out, np.ones(3, "f4")), "mean does not broadcast"),
        ((batch, out, None, np.ones(4)), "std must have the type"),
        ((batch, out, np.ones((1, 1, 4), "f4")), "more axes"),
        ((batch.astype(">u2"), out), "cannot convert"),
        ((batch, np.empty((3, 4), "i4")), "cannot convert"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            _native.convert(*arguments)
    for arguments in [(batch, out.T.copy().T), (3, out), (batch, np.broadcast_to(out[0], (3, 4)))]:
        with pytest.raises((ValueError, BufferError, TypeError)):
            _native.convert(*arguments)


# --- Fields as values ----

FIELDS = [
    Field("x"),
    Field("y"),
    Field("x", select=slice(1, 5)),
    Field("x", select=(slice(1, 5), slice(None), slice(None, None, -2))),
    Field("x", axes=(1, 0, -1)),
    Field("x", dtype="f4"),
    Field("x", dtype="f8"),  # numpy takes None for that
    Field("x", mean=0.5),
    Field("x", std=0.5),
    Field("x", mean=[1.0, 2.0, 3.0], std=[[4], [5]]),
    Field("x", mean=[1.0, 2.0, 4.0], std=[[4], [5]]),
    Field("x", mean=np.arange(100)),
]


def test_fields_are_equal_when_they_do_the_same() -> None:
    for i, one in enumerate(FIELDS):
        assert [one == other for other in FIELDS] == [i == j for j in range(len(FIELDS))]
        assert one != one.name
        for twin in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), dataclasses.replace(one)):
            assert twin == one and hash(twin) == hash(one) and repr(twin) == repr(one)
    assert len({*FIELDS, *FIELDS}) == len(FIELDS)
    assert Field("x", axes=(1, -1, 0)) == Field("x", axes=[1, 2, 0])
    assert Field("x", dtype=">f4") == Field("x", dtype=np.float32)


def test_a_field_is_written_as_it_is_made() -> None:
    for field in FIELDS[:-1]:
        assert eval(repr(field), {"Field": Field}) == field
    assert repr(FIELDS[3]) == "Field('x', select=(slice(1, 5), slice(None), slice(None, None, -2)))"
    assert repr(FIELDS[-1]) == "Field('x', mean=<int64 array of shape (100,)>)"


def test_a_field_does_not_change() -> None:
    mean = np.ones(3)
    field = Field("x", mean=mean)
    field.convert(counted((2, 3)))
    mean[:] = 7
    assert field.convert(counted((1, 3))).tolist() == [[-1, 0, 1]]
    assert field.mean is not None
    for take_back in (field, pickle.loads(pickle.dumps(field))):
        with pytest.raises(ValueError, match="read-only"):
            take_back.mean[0] = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        field.name = "y"  # type: ignore[misc]


def test_the_example_is_true() -> None:
    found = doctest.testmod(field_module)
    assert found.attempted > 0 and found.failed == 0
    assert solar.Field is field_module.Field
