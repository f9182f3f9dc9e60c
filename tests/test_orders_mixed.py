"""order="mixed": numpy says what blocks and windows hold; chunks stay whole; what it goes with, and what is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import settle
from ranks_kit import Sized
from torch.utils.data import ConcatDataset, Subset

from solar import CSR, Crops, Field, H5Dataset, Mixture, PlanError, PlanSampler, Ragged, Windows
from solar.samplers.mixed_blocks import BlockMix, block_ends, blocks_of_epoch, by_mixed_blocks, by_mixed_groups
from solar.samplers.orders import POSITIONS_EVER

many = settings(max_examples=80, deadline=None)


def of(data: Any, **asked: Any) -> PlanSampler:
    return PlanSampler(data, 1, 0, order="mixed", **asked)


def mix_of(sampler: PlanSampler) -> BlockMix:
    assert sampler.by is not None
    found: BlockMix = sampler.by.at.args[0]
    return found


def laid_out(mix: BlockMix, seed: int, epoch: int) -> np.ndarray[Any, Any]:
    """The shuffled blocks, one sample after another: what windows are cut out of."""
    begins, lengths = blocks_of_epoch(mix, seed, epoch)
    places = np.concatenate([np.arange(begin, begin + size) for begin, size in zip(begins, lengths, strict=True)])
    return places if mix.members is None else mix.members[places]


def chi(found: np.ndarray[Any, Any], wanted: float) -> float:
    return float(((found - wanted) ** 2 / wanted).sum())


@st.composite
def mixes(draw: st.DrawFn) -> BlockMix:
    samples = draw(st.integers(1, 300))
    block = draw(st.integers(1, samples))
    window = draw(st.integers(block, samples))
    edges: Any = draw(st.integers(1, block))
    if draw(st.booleans()):
        sizes = draw(st.lists(st.integers(1, 20), min_size=samples, max_size=samples))
        ends = np.cumsum(sizes)
        edges = np.concatenate(([0], ends[ends < samples]))
    members = np.random.default_rng(samples).permutation(samples) if draw(st.booleans()) else None
    return BlockMix(samples, block, window, edges, members)


@many
@given(mixes(), st.integers(-(2**62), 2**62), st.integers(0, 5))
def test_each_window_has_the_samples_of_its_place_among_the_shuffled_blocks(
    mix: BlockMix, seed: int, epoch: int
) -> None:
    found = by_mixed_blocks(mix).whole(seed, epoch)
    assert np.array_equal(np.sort(found), np.arange(mix.samples))
    wanted = laid_out(mix, seed, epoch)
    for begin in range(0, mix.samples, mix.window):
        here = slice(begin, begin + mix.window)
        assert sorted(found[here].tolist()) == sorted(wanted[here].tolist())


@many
@given(mixes(), st.integers(0, 2**40))
def test_blocks_are_the_data_cut_after_each_block_at_the_end_of_a_chunk(mix: BlockMix, offset: int) -> None:
    offset %= mix.block
    ends = block_ends(mix.samples, mix.block, mix.edges, offset).tolist()
    edges = mix.edges
    chunk_ends = [*range(0, mix.samples, edges)] if isinstance(edges, int) else edges.tolist()
    chunk_ends = [*chunk_ends, mix.samples]
    cuts = [next(end for end in chunk_ends if end >= cut) for cut in range(offset, mix.samples, mix.block)]
    assert ends == sorted({cut for cut in cuts if cut > 0} | {mix.samples})
    begins, lengths = blocks_of_epoch(mix, 3, 1)
    order = np.argsort(begins)
    assert begins[order].tolist() == [0, *np.cumsum(lengths[order])[:-1]]
    assert int(lengths.sum()) == mix.samples


def test_any_sample_comes_at_any_place_and_every_window_is_a_shuffle() -> None:
    size, turns = 12, 4000
    made = np.stack([by_mixed_blocks(BlockMix(size, 3, 6)).whole(seed, 0) for seed in range(turns)])
    found = np.array([np.bincount(made[:, place], minlength=size) for place in range(size)])
    freedom = (size - 1) ** 2
    assert chi(found, turns / size) < 2 * freedom  # places are uniform but for the ends of the data
    ranks = np.argsort(np.argsort(made[:, :6], axis=1), axis=1)
    every, counts = np.unique(ranks @ 6 ** np.arange(6), return_counts=True)
    assert len(every) > 700  # of 720 orders of a window
    assert counts.max() < 25


def test_who_is_a_neighbour_changes_with_the_epoch() -> None:
    mix = BlockMix(4000, 10, 100)
    of_blocks = [blocks_of_epoch(mix, 5, epoch) for epoch in range(300)]
    cut = [int(begins[begins > 0].min()) % 10 for begins, _ in of_blocks]
    assert chi(np.bincount(cut, minlength=10), 30) < 9 + 5 * np.sqrt(18)


def test_a_window_as_large_as_the_data_is_an_exact_shuffle() -> None:
    turns = 3000
    made = np.stack([by_mixed_blocks(BlockMix(5, 2, 5)).whole(seed, 0) for seed in range(turns)])
    orders = [tuple(one) for one in made.tolist()]
    counts = np.array([orders.count(one) for one in itertools.permutations(range(5))])
    assert chi(counts, turns / 120) < 119 + 5 * np.sqrt(238)


@many
@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(1, 30), st.integers(0, 20), st.integers(0, 4))
def test_whole_groups_move_and_come_in_a_row(groups: list[int], block: int, more: int, epoch: int) -> None:
    numbers = np.unique(groups, return_inverse=True)[1]
    order = by_mixed_groups(numbers, block, block + more).whole(7, epoch).tolist()
    rows = [list(row) for _, row in itertools.groupby(order, groups.__getitem__)]
    lie = [[at for at, group in enumerate(groups) if group == name] for name in set(groups)]
    assert sorted(rows) == sorted(lie)


def test_groups_of_a_block_come_in_one_window() -> None:
    groups = np.repeat(np.arange(100), 5)
    order = by_mixed_groups(groups, 25, 100).whole(1, 2)
    came = groups[order[::5]]  # 20 groups a window: four or five blocks of five neighbours
    for begin in range(0, 100, 20):
        here = np.sort(came[begin : begin + 20])
        assert np.count_nonzero(np.diff(here) > 1) <= 6


def test_jobs_of_a_study_have_the_same_windows_each_in_its_own_order() -> None:
    made = [of(Sized(600), block=10, window=60, study=4, seed=seed).order() for seed in range(3)]
    for begin in range(0, 600, 60):
        held = [sorted(one[begin : begin + 60].tolist()) for one in made]
        assert held[0] == held[1] == held[2]
        assert len({tuple(one[begin : begin + 60].tolist()) for one in made}) == 3
    apart = [of(Sized(600), block=10, window=60, seed=seed).order()[:60].tolist() for seed in range(2)]
    assert sorted(apart[0]) != sorted(apart[1])


# Sizes, and chunks


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("mixed") / "rows.h5"
    with h5py.File(path, "w") as file:
        values = np.arange(400 * 64, dtype="f4").reshape(400, 64)
        file["x"] = values
        file.create_dataset("z", data=values, chunks=(10, 64), compression="gzip")
        file["y"] = np.arange(400)
        file["ends"] = np.cumsum(np.arange(400) % 7)
        file.create_dataset("hits", data=np.arange(float((np.arange(400) % 7).sum())), chunks=(50,), compression="gzip")
        file.create_dataset("volume", data=np.zeros((64, 16, 16), "f4"), chunks=(8, 8, 8), compression="gzip")
        sparse = file.create_group("X")
        sparse.attrs.update({"encoding-type": "csr_matrix", "shape": (400, 9)})
        counts = np.arange(400) % 5
        sparse["indptr"] = np.concatenate(([0], np.cumsum(counts)))
        sparse["indices"] = np.concatenate([np.arange(n) for n in counts])
        sparse.create_dataset("data", data=np.arange(float(counts.sum())), chunks=(40,), compression="gzip")
    settle(str(path))
    return str(path)


@pytest.mark.parametrize(
    ("fields", "asked", "block", "window"),
    [
        ("x", {"block": 8, "window": 40}, 8, 40),
        ("x", {"block": "1KiB", "window": "10 KiB"}, 4, 40),
        ("x", {"block": 0.01, "window": 0.25}, 4, 100),
        ("z", {"block": 8, "window": 40}, 10, 40),  # whole chunks
        ("z", {"block": 11, "window": 40}, 20, 40),
        ("z", {"block": "1KiB", "window": "1GiB"}, 10, 400),
        ({"x": "x", "z": "z"}, {"block": "1KiB", "window": 100}, 2, 100),  # bytes of all fields; chunks of the largest
        ({"z": "z", "y": "y"}, {"block": 1, "window": 50}, 10, 50),
    ],
)
def test_sizes_are_samples_bytes_or_shares(
    rows: str, fields: Any, asked: dict[str, Any], block: int, window: int
) -> None:
    facts = of(H5Dataset(rows, fields), **asked).facts()
    assert (facts["by"], facts["block"], facts["window"]) == ("mixed", block, window)


def chunk_of(sampler: PlanSampler, chunks: np.ndarray[Any, Any], seed: int = 0) -> None:
    """No chunk is in two blocks. `chunks` has that of each sample."""
    for epoch in range(4):
        mix = mix_of(sampler)
        begins, lengths = blocks_of_epoch(mix, seed, epoch)
        members = np.arange(mix.samples) if mix.members is None else mix.members
        held = [set(chunks[members[b : b + n]].tolist()) for b, n in zip(begins, lengths, strict=True)]
        assert sum(map(len, held)) == len(set(chunks.tolist()))
        assert len(held) > 1


def test_a_chunk_is_in_one_block_whatever_samples_are_made_of_it(rows: str, tmp_path: Path) -> None:
    data = H5Dataset(rows, "z")
    chunk_of(of(data, block=15, window=60), np.arange(400) // 10)
    shuffled = np.random.default_rng(1).permutation(400)[:300]
    chunk_of(of(Subset(data, shuffled.tolist()), block=15, window=60), shuffled // 10)
    where = np.arange(400) % 3 != 0
    chunk_of(of(H5Dataset(rows, "z", where=where), block=15, window=60), np.flatnonzero(where) // 10)
    windows = H5Dataset(rows, Field("z", steps=(0, 1, 2)), samples=Windows(every=3))
    chunk_of(of(windows, block=15, window=60), np.arange(len(windows)) * 3 // 10)
    hits = H5Dataset(rows, Ragged("hits", ends="ends"))
    begins = np.cumsum(np.arange(400) % 7) - np.arange(400) % 7
    chunk_of(of(hits, block=15, window=60), begins // 50)
    matrix = H5Dataset(rows, CSR("X"))
    begins = np.cumsum(np.arange(400) % 5) - np.arange(400) % 5
    chunk_of(of(matrix, block=15, window=60), begins // 40)
    crops = H5Dataset(rows, "volume", samples=Crops((4, 4, 4)))
    places = np.stack(np.meshgrid(np.arange(16), np.arange(4), np.arange(4), indexing="ij"), -1).reshape(-1, 3) // 2
    chunk_of(of(crops, block=15, window=60), places @ [100, 10, 1])
    second = tmp_path / "second.h5"
    with h5py.File(second, "w") as file:
        file.create_dataset("z", data=np.zeros((33, 64), "f4"), chunks=(7, 64), compression="gzip")
    settle(str(second))
    both = np.concatenate((np.arange(400) // 10, 100 + np.arange(33) // 7))
    chunk_of(of(H5Dataset([rows, str(second)], "z"), block=15, window=60), both)
    chunk_of(of(ConcatDataset([data, H5Dataset(str(second), "z")]), block=15, window=60), both)


def test_samples_of_a_random_split_are_neighbours_by_where_they_lie(rows: str) -> None:
    part = torch.utils.data.random_split(H5Dataset(rows, "x"), [300, 100])[0]
    sampler = of(part, block=10, window=50)
    lie = np.array(part.indices)
    begins, lengths = blocks_of_epoch(mix_of(sampler), 0, 0)
    order = np.sort(lie)
    window = lie[sampler.order()[:50]]
    laid = np.concatenate([order[b : b + n] for b, n in zip(begins, lengths, strict=True)])
    assert sorted(window.tolist()) == sorted(laid[:50].tolist())


# States


def test_a_state_has_the_sizes_and_another_order_is_refused_in_words(rows: str) -> None:
    state = json.loads(json.dumps(of(H5Dataset(rows, "x"), block="1KiB", window=0.1, seed=4).state_dict()))
    assert (state["by"], state["block"], state["window"]) == ("mixed", 4, 40)
    for fields, asked, said in (
        ("x", {"block": 5, "window": 40}, "blocks of 4 samples, and this sampler's have 5"),
        ("x", {"block": 4, "window": 41}, "windows of 40 samples, and this sampler's have 41"),
        ("x", {"block": 4, "window": 40, "study": 1}, "of study None, and this sampler's is of study 1"),
        ("x", {"block": 4, "window": 40, "groups": np.arange(400) // 2}, "by 'mixed', and this sampler's is by"),
        ("z", {"block": 10, "window": 40}, "blocks of 4 samples"),
    ):
        with pytest.raises(PlanError, match=said):
            of(H5Dataset(rows, fields), **asked).load_state_dict(state)
    with pytest.raises(PlanError, match="by 'mixed', and this sampler's is by None"):
        PlanSampler(H5Dataset(rows, "x"), 1, 0).load_state_dict(state)
    of(H5Dataset(rows, "x"), block=4, window="10KiB").load_state_dict(state)
    chunked = of(H5Dataset(rows, "z"), block=20, window=40).state_dict()
    with pytest.raises(PlanError, match="by other mixed"):  # as many samples, and other chunks
        of(H5Dataset(rows, "x"), block=20, window=40).load_state_dict(chunked)


# What cannot be


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"order": "mixed"}, "give both with it"),
        ({"order": "mixed", "block": 2}, "give both with it"),
        ({"block": 2, "window": 4}, "and none without"),
        ({"window": 4}, "and none without"),
        ({"order": "blocks", "block": 2, "window": 4}, "and none without"),
        ({"order": "mixed", "block": 2, "window": "auto"}, "an order must not follow from the machine"),
        ({"order": "mixed", "block": 4, "window": 2}, "a window mixes several blocks"),
        ({"order": "mixed", "block": 0, "window": 2}, "block=0: give a number of samples"),
        ({"order": "mixed", "block": True, "window": 2}, "block=True"),
        ({"order": "mixed", "block": 1.5, "window": 2}, "block=1.5"),
        ({"order": "mixed", "block": float("nan"), "window": 2}, "block=nan"),
        ({"order": "mixed", "block": "2", "window": 2}, "a text is a size with its unit"),
        ({"order": "mixed", "block": "2 parsecs", "window": 2}, "is not a size such as"),
        ({"order": "mixed", "block": "1MiB", "window": 2}, "only the samples of an H5Dataset have bytes"),
        ({"order": "mixed", "block": 1, "window": 2, "weights": [1, 2, 3, 4]}, "draws by weight take samples from any"),
        ({"order": "mixed", "block": 1, "window": 2, "labels": [1, 2, 1, 2], "per_class": "equal"}, "classes are gone"),
        ({"order": "mixed", "block": 1, "window": 2, "by_length": [1, 2, 1, 2], "run": 2}, "samples of similar length"),
        ({"order": "mixed", "block": 1, "window": 2, "study": (1, 0.1)}, "the stretches of the study are the windows"),
        ({"order": "mixed", "block": 1, "window": 2, "shuffle": False}, 'shuffle=False, and order="mixed" draws'),
        ({"order": "mixed", "block": 1, "window": 2, "num_samples": 3}, "only weights or labels"),
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PlanSampler(Sized(4), 1, 0, **asked)


def test_mixtures_random_crops_and_far_epochs_are_refused(rows: str) -> None:
    with pytest.raises(ValueError, match="order: a Mixture has its own order"):
        of(Mixture({"a": (range(5), 1), "b": (range(5), 1)}), block=1, window=2)
    crops = H5Dataset(rows, "volume", samples=Crops((4, 4, 4), at="random", per=50))
    with pytest.raises(ValueError, match="each epoch draws the places of these crops anew"):
        of(crops, block=4, window=8)
    of(crops, block=10, window=20, groups=np.arange(50) // 10)
    far = of(Sized(100), block=4, window=8)
    far.set_epoch(POSITIONS_EVER // 100)
    with pytest.raises(PlanError, match="lies too far away"):
        far.order()
    with pytest.raises(PlanError, match="no sample to put in order"):
        of(Sized(0), block=4, window=8)
