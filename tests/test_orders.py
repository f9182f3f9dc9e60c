"""PlanSampler's orders by weights, classes, groups, blocks and by hand: what they promise, on any number of ranks."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ranks_kit import TAILS, Sized, batched, flat, steps_of

from solar import H5Dataset, PlanBatchSampler, PlanError, PlanSampler
from solar.samplers import orders
from solar.samplers.orders import by_weights

SAMPLES = 60
CLASSES = np.random.default_rng(5).choice(4, SAMPLES, p=[0.5, 0.3, 0.15, 0.05])
WEIGHTS = np.random.default_rng(6).random(SAMPLES)
ORDERS: dict[str, dict[str, Any]] = {
    "weights": {"weights": WEIGHTS, "num_samples": 83},
    "equal classes": {"labels": CLASSES, "per_class": "equal", "num_samples": 50},
    "weighted classes": {"labels": CLASSES, "per_class": [0.1, 0.2, 0.3, 0.4]},
    "groups": {"groups": CLASSES},
    "blocks": {"order": "blocks:7"},
    "lengths": {"by_length": np.random.default_rng(7).integers(0, 30, SAMPLES), "run": 8},
    "a study": {"study": (3, 0.2)},
    "mixed": {"order": "mixed", "block": 5, "window": 17},
    "mixed groups": {"order": "mixed", "block": 0.1, "window": 20, "groups": np.arange(SAMPLES) // 3 % 15},
    "a mixed study": {"order": "mixed", "block": 4, "window": 16, "study": 3},
    "an array": {"order": np.array([5, 5, 0, 59, 3, 3, 3, 8, 1])},
    "a function": {"order": lambda epoch: np.roll(np.arange(SAMPLES), epoch)},
}
many = settings(max_examples=60, deadline=None)
kinds = pytest.mark.parametrize("kind", ORDERS)


@pytest.fixture(scope="module", autouse=True)
def _short_patterns() -> Iterator[None]:
    """Each sampler of weighted classes makes its pattern: a shorter one is made sixty times as fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "PATTERN", 1 << 10)
        yield


def sampler(kind: str, ranks: int = 1, rank: int = 0, **options: Any) -> PlanSampler:
    return PlanSampler(Sized(SAMPLES), ranks, rank, **ORDERS[kind], **options)


def epochs(of: PlanSampler, count: int) -> list[list[int]]:
    made = []
    for epoch in range(count):
        of.set_epoch(epoch)
        made.append(list(of))
    return made


# Any order


@kinds
def test_an_order_depends_on_seed_and_epoch_alone(kind: str) -> None:
    np.random.seed(1)
    torch.manual_seed(1)
    one = epochs(sampler(kind, seed=3), 3)
    np.random.seed(2)
    torch.manual_seed(2)
    assert epochs(sampler(kind, seed=3), 3) == one
    again = sampler(kind, seed=3)
    again.set_epoch(2)  # without those before it
    assert list(again) == one[2]
    if kind != "an array":
        assert one[0] != one[1]
    if kind not in ("an array", "a function"):
        assert epochs(sampler(kind, seed=4), 3) != one


@pytest.mark.slow(every=4)
@kinds
@many
@given(ranks=st.integers(1, 8), batch=st.integers(1, 9), tail=st.sampled_from(TAILS), epoch=st.integers(0, 3))
def test_the_steps_of_all_ranks_are_one_order(kind: str, ranks: int, batch: int, tail: Any, epoch: int) -> None:
    samplers = [sampler(kind, ranks, rank, tail=tail) for rank in range(ranks)]
    for one in samplers:
        one.set_epoch(epoch)
    whole = samplers[0].order().tolist()
    found = flat(steps_of([list(of_rank) for of_rank in batched(samplers, batch)]))
    if tail == "exact":
        assert found == whole
    elif tail == "drop":
        assert found == whole[: len(whole) // ranks * ranks]
    else:
        assert found == [whole[at % len(whole)] for at in range(-(-len(whole) // ranks) * ranks)]
    assert [len(one) for one in samplers] == [len(list(one)) for one in samplers]


@pytest.mark.slow(every=3)
@kinds
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 4)), min_size=1, max_size=4), st.integers(1, 4))
def test_any_number_of_ranks_goes_on_with_exactly_the_rest(
    kind: str, stages: list[tuple[int, int]], batch: int
) -> None:
    """Some steps at each of several numbers of ranks, and the rest: the order, sample by sample."""
    whole, found, state = sampler(kind, seed=9).order().tolist(), [], None
    for ranks, steps in [*stages, (1, 10**9)]:
        samplers = [sampler(kind, ranks, rank, seed=1, tail="exact") for rank in range(ranks)]
        if state is None:
            samplers = [sampler(kind, ranks, rank, seed=9, tail="exact") for rank in range(ranks)]
        else:
            for one in samplers:
                one.load_state_dict(json.loads(state))
        took = [list(itertools.islice(of_rank, steps)) for of_rank in batched(samplers, batch)]
        found += flat(steps_of(took))
        states = {json.dumps(one.state_dict()) for one in samplers}
        assert len(states) == 1
        (state,) = states
        assert len(state) < 1000
    assert found == whole


@pytest.mark.slow(every=3)
@kinds
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 5))
def test_any_positions_can_be_asked_for(kind: str, begin: int, count: int, epoch: int) -> None:
    of = sampler(kind).by
    assert of is not None
    end = min(begin + count, of.length)
    here = range(min(begin, end), end)
    assert of.at(7, epoch, here).tolist() == of.whole(7, epoch)[here.start : here.stop].tolist()


@pytest.mark.parametrize("kind", [kind for kind in ORDERS if kind != "a function"])  # a lambda cannot be pickled
def test_a_copy_and_a_pickled_sampler_give_the_same(kind: str) -> None:
    one = sampler(kind, seed=2)
    assert list(copy.copy(one)) == list(pickle.loads(pickle.dumps(one))) == list(one)


@kinds
def test_indices_are_pythons_own_integers_and_the_order_is_read_only(kind: str) -> None:
    one = sampler(kind)
    assert {type(index) for index in one} == {int}
    assert {type(index) for batch in PlanBatchSampler(one, 7, False) for index in batch} == {int}
    with pytest.raises(ValueError, match="read-only"):
        one.order()[0] = 1


def test_an_order_takes_four_bytes_a_sample() -> None:
    assert sampler("weights").order().dtype == np.int32
    assert by_weights(np.ones(1000), 1000).at.args[0].nbytes == 8 * 1000


# Weights


def test_draws_are_as_often_as_weights_say() -> None:
    rng = np.random.default_rng(0)
    weights = np.concatenate([rng.lognormal(0, 2, 900), np.zeros(100)])
    rng.shuffle(weights)
    made = by_weights(weights, 10_000_000).whole(11, 4)
    found, wanted = np.bincount(made, minlength=1000), weights / weights.sum() * 1e7
    assert not found[weights == 0].any()
    kept = wanted > 5
    chi = float(((found - wanted)[kept] ** 2 / wanted[kept]).sum())
    freedom = kept.sum() - 1
    assert abs(chi - freedom) < 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("weights", [[5.0], [0, 3], [1, 1e-300], [1e308, 1e307], [1e-320, 1e-320], [0.1] * 1000])
def test_extreme_weights_are_drawn_by(weights: list[float]) -> None:
    found = np.bincount(by_weights(np.array(weights), 100_000).whole(0, 0), minlength=len(weights))
    share = np.array(weights) / max(weights)
    wanted = share / share.sum() * 100_000
    assert (np.abs(found - wanted) <= 5 * np.sqrt(wanted) + 1e-9).all()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=50).filter(any))
def test_each_weight_has_its_part_of_the_table(weights: list[int]) -> None:
    """By the table itself: what all its slots give together is each weight's share."""
    table = by_weights(np.array(weights, float), 1).at.args[0]
    own, other = (table >> np.uint64(32)).astype(float) / 2**32, (table & np.uint64(0xFFFFFFFF)).astype(np.int64)
    parts = own + np.bincount(other, weights=1 - own, minlength=len(weights))
    assert np.allclose(parts / len(weights), np.array(weights) / sum(weights), atol=1e-9)


def test_torch_and_lists_and_whole_numbers_are_weights_too() -> None:
    numbers = [1, 0, 5, 2]
    given: list[Any] = [
        numbers,
        np.array(numbers),
        torch.tensor(numbers),
        torch.tensor(numbers, dtype=torch.float32),
    ]
    assert len({tuple(PlanSampler(Sized(4), 1, 0, weights=one, num_samples=99)) for one in given}) == 1


# Classes


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 70), st.integers(0, 2**40))
def test_equal_classes_come_once_a_round_and_each_sample_once_before_any_twice(
    labels: list[int], num_samples: int, seed: int
) -> None:
    options = {"labels": labels, "per_class": "equal", "num_samples": num_samples}
    made = flat(epochs(PlanSampler(Sized(len(labels)), 1, 0, seed=seed, **options), 4))
    came, count = [labels[sample] for sample in made], len(set(labels))
    for begin in range(0, len(came) - count + 1, count):
        assert sorted(came[begin : begin + count]) == sorted(set(labels))
    check_shuffles(made, labels)


def check_shuffles(made: list[int], labels: list[int]) -> None:
    """Of each class every sample comes once before any comes twice, and twice before any thrice."""
    for label in set(labels):
        of_class = [sample for sample in made if labels[sample] == label]
        size = labels.count(label)
        for begin in range(0, len(of_class), size):
            shuffle = of_class[begin : begin + size]
            assert len(set(shuffle)) == len(shuffle)


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=40),
    st.integers(1, 99),
)
@example([2**0.5, 0.01, 99.9], [0, 2, 1, 1, 0], 99)
@many
def test_weighted_classes_have_their_shares_within_one_at_every_step(
    weights: list[float], more: list[int], num_samples: int
) -> None:
    labels = [*range(len(weights)), *(label % len(weights) for label in more)]
    one = PlanSampler(Sized(len(labels)), 1, 0, labels=labels, per_class=weights, num_samples=num_samples)
    made = flat(epochs(one, 5))
    had = np.cumsum(np.array([labels[sample] for sample in made])[:, np.newaxis] == np.arange(len(weights)), axis=0)
    due = np.arange(1, len(made) + 1)[:, np.newaxis] * np.array(weights) / sum(weights)
    assert np.abs(had - due).max() < 1 + 1e-3  # shares are taken in parts of a million
    check_shuffles(made, labels)


def test_a_class_is_called_as_its_label_and_weight_0_leaves_it_out() -> None:
    labels = ["cat", "dog", "cat", "eel", "dog", "cat"]
    one = PlanSampler(Sized(6), 1, 0, labels=labels, per_class={"cat": 1, "dog": 3, "eel": 0}, num_samples=8)
    assert one.counts() == {"cat": 2, "dog": 6}
    assert Counter(labels[sample] for sample in one) == {"cat": 2, "dog": 6}
    assert one.counts(4) == dict(Counter(labels[sample] for sample in list(one)[:4]))


@pytest.mark.slow(every=4)
@pytest.mark.parametrize("size", [2, 3, 5, 12, 13, 40])
def test_each_place_of_a_shuffle_may_have_any_sample(size: int) -> None:
    made = np.array(
        [list(PlanSampler(Sized(size), 1, 0, seed=seed, labels=[0] * size, per_class="equal")) for seed in range(2000)]
    )
    found = np.array([np.bincount(made[:, place], minlength=size) for place in range(size)])
    assert ((found - 2000 / size) ** 2 / (2000 / size)).sum() < (size - 1) ** 2 + 5 * np.sqrt(2) * (size - 1)
    if size == 3:
        assert set(Counter(map(tuple, made.tolist()))) == set(itertools.permutations(range(3)))


# Groups, blocks, by hand


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=50), st.integers(0, 5), st.booleans())
def test_a_group_comes_in_a_row_and_as_it_lies(groups: list[str], epoch: int, shuffle: bool) -> None:
    one = PlanSampler(Sized(len(groups)), 1, 0, shuffle=shuffle, groups=groups)
    one.set_epoch(epoch)
    rows = [list(row) for _, row in itertools.groupby(one, groups.__getitem__)]
    lie = {name: [at for at, group in enumerate(groups) if group == name] for name in groups}
    assert sorted(rows) == sorted(lie.values())
    if not shuffle:
        assert rows == list(lie.values())


@given(st.integers(1, 80), st.integers(1, 30), st.integers(0, 9))
def test_blocks_are_whole_and_each_is_shuffled(samples: int, size: int, epoch: int) -> None:
    one = PlanSampler(Sized(samples), 1, 0, order=f"blocks:{size}")
    one.set_epoch(epoch)
    rows = [list(row) for _, row in itertools.groupby(one, lambda sample: sample // size)]
    blocks = [list(range(begin, min(begin + size, samples))) for begin in range(0, samples, size)]
    assert sorted(sorted(row) for row in rows) == blocks


def test_blocks_have_a_thousand_samples_unless_they_are_told_others() -> None:
    order = PlanSampler(Sized(5000), 1, 0, order="blocks").order()
    assert [len(list(row)) for _, row in itertools.groupby(order // 1024)].count(1024) == 4


def test_an_array_or_a_function_of_the_epoch_is_the_order() -> None:
    assert epochs(sampler("an array"), 2) == [ORDERS["an array"]["order"].tolist()] * 2
    assert epochs(sampler("a function"), 3)[2] == np.roll(np.arange(SAMPLES), 2).tolist()


def test_columns_may_be_named_by_the_dataset_that_has_them(tmp_path: Path) -> None:
    paths, values = [], np.arange(40)
    for part in range(2):
        paths.append(str(tmp_path / f"{part}.h5"))
        with h5py.File(paths[-1], "w") as file:
            file["x"], file["weight"] = values[part::2], values[part::2] % 3
            file["volume"] = np.array([f"v{k % 4}" for k in values[part::2]], dtype=h5py.string_dtype())
    data, both = H5Dataset(paths, {"x": "x"}), np.concatenate([values[::2], values[1::2]])
    volumes = [f"v{k % 4}" for k in both]
    for name, column, more in (
        ("weights", both % 3, {}), ("groups", volumes, {}), ("labels", volumes, {"per_class": "equal"})
    ):  # fmt: skip
        named = {"weights": "weight"}.get(name, "volume")
        one, other = (PlanSampler(data, 1, 0, **{name: given}, **more) for given in (named, column))
        assert list(one) == list(other)
        assert list(one.counts()) == (sorted(set(volumes)) if name == "labels" else [])


# What cannot be


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"weights": [1, -2, 3]}, "that of sample 1 is -2.0; give numbers of 0 or more"),
        ({"weights": [1, np.nan, np.inf]}, "sample 1 is nan, and 1 others like it"),
        ({"weights": [0, 0, 0]}, "all 3 are 0"),
        ({"weights": [1, 2]}, "has 2 values, and the dataset 3 samples"),
        ({"weights": [[1, 2, 3]]}, r"shape \(1, 3\)"),
        ({"weights": [1e308, 1e308, 1e308]}, "sum is more than a number can be"),
        ({"weights": ["a", "b", "c"]}, "give numbers"),
        ({"weights": "/w"}, "names a dataset, and only an H5Dataset has files"),
        ({"weights": [1, 2, 3], "groups": [1, 2, 3]}, "weights and groups are 2 orders"),
        ({"weights": [1, 2, 3], "num_samples": 0}, "at least one sample"),
        ({"weights": [1, 2, 3], "shuffle": False}, "draws by chance"),
        ({"num_samples": 5}, "only weights or labels"),
        ({"labels": [1, 2, 3]}, "Give both or neither"),
        ({"per_class": "equal"}, "Give both or neither"),
        ({"labels": [1, 2], "per_class": "equal"}, "has 2 values, and the dataset 3"),
        ({"labels": [1, np.nan, 3], "per_class": "equal"}, "sample 1 has NaN"),
        ({"labels": [1, 2, 3], "per_class": "even"}, "'even'"),
        ({"labels": [1, 2, 3], "per_class": [1, 2]}, "has 3 classes"),
        ({"labels": [1, 2, 3], "per_class": {1: 1, 2: 1, 3: 1, 4: 1}}, "class 4 has no sample"),
        ({"labels": [1, 2, 3], "per_class": {1: 1, 2: 1}}, "says nothing of class 3"),
        ({"labels": [1, 2, 3], "per_class": [1, -1, 1]}, "the weight of class 2 is -1.0"),
        ({"labels": [1, 2, 3], "per_class": [0, 0, 0]}, "all 3 classes have weight 0"),
        ({"labels": [1, 2, 3], "per_class": [1e9, 1, 1e9]}, "class 2 is less than one sample in 1,048,576"),
        ({"order": "block"}, "'block'"),
        ({"order": "blocks:0"}, "'blocks:0'"),
        ({"order": [0, 3]}, "asks for sample 3 at position 1; the dataset has 0 to 2"),
        ({"order": [0.5]}, "type float64"),
        ({"order": []}, "give the numbers of the samples"),
        ({"order": lambda epoch: [0] * (1 + epoch)}, None),
    ],
)
def test_what_cannot_be_is_refused_in_words(arguments: dict[str, Any], said: str | None) -> None:
    if said is None:
        one = PlanSampler(Sized(3), 1, 0, **arguments)
        one.set_epoch(2)
        with pytest.raises(PlanError, match="gives 3 samples for epoch 2, and 1 for epoch 0"):
            list(one)
        return
    with pytest.raises(ValueError, match=said):  # PlanError is one
        PlanSampler(Sized(3), 1, 0, **arguments)


def test_an_empty_dataset_has_no_order() -> None:
    with pytest.raises(PlanError, match="no sample to put in order"):
        PlanSampler(Sized(0), 1, 0, weights=[])


OTHERS: list[tuple[str, Callable[[], PlanSampler], str]] = [
    ("weights", lambda: PlanSampler(Sized(SAMPLES), 1, 0, weights=WEIGHTS + 1, num_samples=83), "by other weights"),
    ("weights", lambda: PlanSampler(Sized(SAMPLES), 1, 0, weights=WEIGHTS), "of 83 samples, and this sampler's is of"),
    ("weights", lambda: PlanSampler(Sized(SAMPLES), 1, 0), "order by 'weights', and this sampler's is by None"),
    ("groups", lambda: sampler("weights"), "order by 'groups', and this sampler's is by 'weights'"),
    ("blocks", lambda: PlanSampler(Sized(SAMPLES), 1, 0, order="blocks:8"), "by other blocks"),
]


@pytest.mark.parametrize(("kind", "make", "said"), OTHERS)
def test_a_state_of_another_order_is_refused(kind: str, make: Callable[[], PlanSampler], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        make().load_state_dict(sampler(kind).state_dict())
