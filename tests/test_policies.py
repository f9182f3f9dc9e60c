"""The policies of others, against cases counted by hand and against slow, obvious twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from solar.planning import policies, torch_shuffles
from solar.planning.units import Units, uniform
from solar.values import Outcome, Storage, World

# A request costs as much as 100 bytes: the gap.
STORAGE = Storage(latency=0.0, bandwidth=1000.0, iops=10.0)
ONE = World(0, 1)


def sequence(*epochs: list[int]) -> torch_shuffles.ShuffledUses:
    return torch_shuffles.of_sequences(epochs, 1 + max(map(max, epochs)))


def shuffled(samples: int, ranks: int = 1, epochs: int = 3) -> torch_shuffles.ShuffledUses:
    """Random epochs, padded as torch does."""
    rng = np.random.default_rng(9)
    uses = -(-samples // ranks) * ranks
    return torch_shuffles.of_sequences([np.resize(rng.permutation(samples), uses) for _ in range(epochs)], samples)


def counts(outcome: Outcome) -> tuple[float, float, float, float]:
    return outcome.reads, outcome.hits, outcome.requests, outcome.bytes


# --- PyTorch ----


def test_torch_reads_every_sample_by_itself() -> None:
    done = policies.torch(sequence([0, 1, 2, 3], [3, 2, 1, 0]), uniform(4, 50), ONE, batch=2, storage=STORAGE)
    assert counts(done) == (4, 0, 4, 200)
    assert done.seconds == pytest.approx(4 * 0.1)  # in which the bytes pass, too
    assert done.peak_bytes == 2 * 50


def test_torch_reads_a_whole_chunk_for_each_of_its_samples() -> None:
    units = uniform(4, 50, per_unit=2, stored=60)
    done = policies.torch(sequence([0, 1, 2, 3], [0, 1, 2, 3]), units, ONE, batch=4, storage=STORAGE)
    assert counts(done) == (4, 0, 4, 240)


def test_a_node_holds_the_batches_of_its_ranks() -> None:
    shuffle = shuffled(16, ranks=4)
    done = policies.torch(shuffle, uniform(16, 10), World(0, 4, 0, 2), batch=3, storage=STORAGE)
    assert done.peak_bytes == 2 * 3 * 10


# --- least recently used ----


def test_lru_finds_again_what_it_used_last() -> None:
    # Two of four are kept: 2 and 3 when the second epoch begins; 3 and 2 are hits, 0 and 1 are not.
    done = policies.lru(sequence([0, 1, 2, 3], [3, 2, 0, 1]), uniform(4, 50), ONE, memory=100, storage=STORAGE)
    assert counts(done) == (2, 2, 2, 100)
    assert done.peak_bytes == 100


def test_lru_finds_nothing_when_all_is_read_in_the_same_order_again() -> None:
    done = policies.lru(sequence([0, 1, 2, 3], [0, 1, 2, 3]), uniform(4, 50), ONE, memory=150, storage=STORAGE)
    assert counts(done) == (4, 0, 4, 200)


def test_ranks_share_the_memory_of_their_node_but_not_what_is_in_it() -> None:
    # Rank 0 uses 0 2, then 2 0; rank 1 uses 1 3, then 1 3. Each keeps one: 2 is found by rank 0, nothing by rank 1.
    shuffle = sequence([0, 1, 2, 3], [2, 1, 0, 3])
    done = policies.lru(shuffle, uniform(4, 50), World(0, 2, 0, 2), memory=100, storage=STORAGE)
    assert counts(done) == (3, 1, 3, 150)
    assert done.peak_bytes == 100
    apart = policies.lru(shuffle, uniform(4, 50), World(0, 2), memory=100, storage=STORAGE)
    assert counts(apart) == (0, 4, 0, 0)
    assert apart.peak_bytes == 100


def test_lru_keeps_chunks_decoded_with_all_their_samples() -> None:
    units = uniform(4, 50, per_unit=2, stored=30)
    done = policies.lru(sequence([0, 2, 1, 3], [0, 1, 2, 3]), units, ONE, memory=100, storage=STORAGE)
    assert counts(done) == (2, 2, 2, 60)
    nothing_fits = policies.lru(sequence([0, 2, 1, 3], [0, 1, 2, 3]), units, ONE, memory=99, storage=STORAGE)
    assert counts(nothing_fits) == (4, 0, 4, 120)
    assert nothing_fits.peak_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_lru_of_units_of_any_size_is_what_stack_distances_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, 12)
    uses, room = rng.integers(0, 12, 200), int(rng.integers(0, 40))
    misses, peak = policies._lru_misses(uses, sizes, room)
    most = 0
    for now, unit in enumerate(uses):
        since: list[int] = []  # what was used since, the latest first; what never fits does not push others out
        for earlier in reversed(uses[:now]):
            if earlier not in since and sizes[earlier] <= room:
                since.append(int(earlier))
            if earlier == unit:
                break
        fits = sum(sizes[since]) <= room
        assert misses[now] == (not (unit in since and fits)), (seed, now)
        held = np.cumsum([sizes[u] for u in dict.fromkeys(reversed(uses[: now + 1])) if sizes[u] <= room])
        most = max(most, int(held[held <= room].max(initial=0)))
    assert peak == most


# --- pinned ----


def test_a_pinned_part_is_hit_once_an_epoch() -> None:
    # Of 250 bytes 100 are kept for the batch: three samples of 50 are pinned.
    done = policies.pinned(shuffled(8), uniform(8, 50), ONE, batch=2, memory=250, storage=STORAGE)
    assert counts(done) == (5, 3, 5, 250)
    assert done.peak_bytes == 250


def test_nodes_pin_different_parts_for_each_other() -> None:
    done = policies.pinned(
        shuffled(16, ranks=4), uniform(16, 50), World(0, 4, 0, 2), batch=1, memory=250, storage=STORAGE
    )
    assert counts(done) == (10, 6, 10, 500)


def test_the_smallest_units_are_pinned() -> None:
    sizes = np.array([70, 10, 40, 20])
    units = Units(4, 1, 100, 70, True, np.arange(5), np.cumsum(sizes) - sizes, sizes)
    done = policies.pinned(shuffled(4), units, ONE, batch=1, memory=100 + 35, storage=STORAGE)
    assert counts(done) == (2, 2, 2, 110)
    assert done.peak_bytes == 10 + 20 + 100


def test_a_batch_reads_a_chunk_once_if_memory_holds_the_batch() -> None:
    units, before = uniform(8, 50, per_unit=2, stored=60), [*range(8)]
    room: dict[str, Any] = {"batch": 2, "storage": STORAGE}
    in_chunks, across = sequence(before, [1, 0, 2, 3, 4, 5, 6, 7]), sequence(before, [1, 2, 0, 3, 5, 6, 4, 7])
    done = policies.pinned(in_chunks, units, ONE, memory=100, **room)
    assert counts(done) == (8, 0, 4, 240)
    apart = policies.pinned(across, units, ONE, memory=100, **room)
    assert counts(apart) == (8, 0, 8, 480)
    # Two ranks: 1 and 2 go to the first, 0 and 3 to the second.
    ranks = policies.pinned(in_chunks, units, World(0, 2, 0, 2), memory=200, **room)
    assert counts(ranks) == (8, 0, 8, 480)


@pytest.mark.parametrize("memory", [0, 99])
@pytest.mark.parametrize("per_unit", [1, 2, 4])
def test_without_room_for_a_batch_a_pinned_part_reads_what_torch_reads(per_unit: int, memory: int) -> None:
    shuffle, units = shuffled(16), uniform(16, 50, per_unit=per_unit, stored=30)
    none = policies.pinned(shuffle, units, ONE, batch=2, memory=memory, storage=STORAGE)
    assert none == policies.torch(shuffle, units, ONE, batch=2, storage=STORAGE)
    least = policies.lru(shuffle, units, ONE, memory=0, storage=STORAGE)
    assert counts(least) == counts(none)


def test_what_holds_everything_needs_no_room_for_batches() -> None:
    done = policies.pinned(shuffled(8), uniform(8, 50), ONE, batch=8, memory=400, storage=STORAGE)
    assert counts(done) == (0, 8, 0, 0)
    assert done.peak_bytes == 400


def test_encoded_chunks_are_pinned_as_they_are_stored_unless_decoding_costs_more() -> None:
    # All four chunks fit as they are stored; decoded, only one fits beside a batch of one sample.
    units = uniform(8, 50, per_unit=2, stored=40)
    stored = policies.pinned(shuffled(8), units, ONE, batch=1, memory=210, storage=STORAGE)
    assert counts(stored) == (0, 8, 0, 0)
    assert stored.peak_bytes == 160
    slow = Storage(latency=0.0, bandwidth=1000.0, iops=10.0, decode=100.0)
    decoded = policies.pinned(shuffled(8), units, ONE, batch=1, memory=210, storage=slow)
    assert counts(decoded) == (6, 2, 6, 240)
    assert decoded.seconds == pytest.approx(6 * 0.1 + 6 * 100 / 100)


# --- the published SOLAR ----


def test_the_end_of_an_epoch_serves_the_beginning_of_the_next() -> None:
    # Four are held: 4 5 6 7. The next epoch begins 7 0 4 1: two hits. 5 and 6 come too late.
    shuffle = sequence([0, 1, 2, 3, 4, 5, 6, 7], [7, 0, 4, 1, 5, 6, 2, 3])
    done = policies.solar_paper(shuffle, uniform(8, 200), ONE, batch=1, memory=800, storage=STORAGE)
    assert counts(done) == (6, 2, 6, 1200)
    assert done.peak_bytes == 800


def test_the_buffers_of_all_nodes_are_one() -> None:
    # Two nodes hold two samples each: 4 5 6 7. Alone, one of them would hold 6 7, and find only 7.
    shuffle = sequence([0, 1, 2, 3, 4, 5, 6, 7], [7, 0, 4, 1, 5, 6, 2, 3])
    done = policies.solar_paper(shuffle, uniform(8, 200), World(0, 2), batch=1, memory=400, storage=STORAGE)
    assert (done.hits, done.peak_bytes) == (2, 400)
    node = policies.solar_paper(shuffle, uniform(8, 200), World(0, 2, 0, 2), batch=1, memory=400, storage=STORAGE)
    assert (node.hits, node.peak_bytes) == (1, 400)


def test_only_whole_steps_are_served() -> None:
    # Of the first four uses only one step of three: 7 and 4 are hits, 5 is not.
    shuffle = sequence([0, 1, 2, 3, 4, 5, 6, 7], [7, 0, 4, 5, 1, 6, 2, 3])
    done = policies.solar_paper(shuffle, uniform(8, 200), ONE, batch=3, memory=800, storage=STORAGE)
    assert done.hits == 2


def test_what_holds_everything_reads_nothing() -> None:
    done = policies.solar_paper(
        sequence([0, 1, 2], [2, 0, 1]), uniform(3, 50), ONE, batch=2, memory=150, storage=STORAGE
    )
    assert counts(done) == (0, 3, 0, 0)
    assert done.seconds == 0


def test_the_missing_samples_of_a_step_are_divided_equally_and_joined() -> None:
    # Nothing is held. 0 1 | 2 7: the first rank joins its two; 350 bytes lie between those of the second: two requests.
    shuffle = sequence([0, 1, 2, 3, 4, 5, 6, 7], [7, 1, 2, 0, 3, 4, 5, 6])
    units = uniform(8, 70)
    done = policies.solar_paper(shuffle, units, World(0, 2), batch=2, memory=0, storage=STORAGE)
    assert counts(done) == (8, 0, 3 + 2, 8 * 70)
    # With one rank: 0 1 2 are one request, and 3 4 5 6.
    alone = policies.solar_paper(shuffle, units, ONE, batch=4, memory=0, storage=STORAGE)
    assert counts(alone) == (8, 0, 2 + 1, 8 * 70)


def test_a_small_gap_is_read_and_a_large_one_is_not() -> None:
    shuffle = sequence([0, 1, 2, 3], [0, 2, 1, 3])
    small = policies.solar_paper(shuffle, uniform(4, 99), ONE, batch=2, memory=0, storage=STORAGE)
    assert counts(small) == (4, 0, 2, 6 * 99)
    large = policies.solar_paper(shuffle, uniform(4, 100), ONE, batch=2, memory=0, storage=STORAGE)
    assert counts(large) == (4, 0, 4, 400)


@pytest.mark.parametrize("f", [0.25, 0.5, 0.9])
def test_edge_reuse_is_the_square_of_the_share_in_memory(f: float) -> None:
    samples = 20_000
    memory = int(f * samples) * 10
    done = policies.solar_paper(shuffled(samples), uniform(samples, 10), ONE, batch=10, memory=memory, storage=STORAGE)
    assert done.hits / samples == pytest.approx(f * f, abs=0.015)


# --- all of them ----


@pytest.mark.parametrize("name", ["torch", "lru", "pinned", "solar_paper"])
def test_uses_are_reads_and_hits_whatever_the_world(name: str) -> None:
    rng = np.random.default_rng(5)
    sizes = rng.integers(5, 15, 300)
    place = rng.permutation(300).astype(np.int32)
    units = Units(300, 1, 20, int(sizes.max()), True, np.arange(301), np.cumsum(sizes) - sizes, sizes, place)
    for ranks, per_node in ((1, 1), (4, 2), (7, 3)):
        shuffle = shuffled(300, ranks)
        memory: dict[str, Any] = {} if name == "torch" else {"memory": 900}
        batch = {} if name == "lru" else {"batch": 8}
        world = World(0, ranks, 0, per_node)
        done = getattr(policies, name)(shuffle, units, world, storage=STORAGE, epoch=2, **memory, **batch)
        assert done.reads + done.hits == shuffle.uses
        assert done.reads >= done.requests
        assert done.seconds == pytest.approx(STORAGE.seconds(done.requests, done.bytes))
        assert name == "torch" or done.peak_bytes <= 900


def test_blocks_of_steps_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffle, units, world = shuffled(1000, ranks=4), uniform(1000, 30), World(0, 4, 0, 2)
    every = [
        lambda: policies.torch(shuffle, units, world, batch=7, storage=STORAGE),
        lambda: policies.pinned(shuffle, units, world, batch=7, memory=9000, storage=STORAGE),
        lambda: policies.solar_paper(shuffle, units, world, batch=7, memory=9000, storage=STORAGE),
    ]
    whole = [one() for one in every]
    monkeypatch.setattr(policies, "POLICY_BLOCK", 60)
    assert [one() for one in every] == whole
