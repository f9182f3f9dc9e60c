"""States of loaders and samplers that anybody may have written: they are taken, or refused with a PlanError."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from state_kit import SAMPLES, Plain

from solar import DataLoader, PlanError, PlanSampler


class Odd:
    """A batch sampler of the user's."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([0], [5, 1], [2, 3, 4], [7, 6, 22])

    def __len__(self) -> int:
        return 4


def loader_of(kind: str) -> DataLoader[Any]:
    ways: dict[str, dict[str, Any]] = {
        "sequential": {"batch_size": 3},
        "shuffled": {"batch_size": 3, "shuffle": True},
        "by generator": {"batch_size": 3, "shuffle": True, "generator": torch.Generator().manual_seed(7)},
        "distributed": {"batch_size": 3, "sampler": PlanSampler(Plain(), 2, 0, seed=5)},
        "custom": {"batch_sampler": Odd()},
    }
    return DataLoader(Plain(), **ways[kind])


KINDS = ["sequential", "shuffled", "by generator", "distributed", "custom"]
numbers = st.one_of(st.integers(-3, 40), st.integers(-(2**70), 2**70), st.floats())
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)
often = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def told(kind: str, batches: int) -> dict[str, Any]:
    """The state of a loader that has handed out so many batches."""
    loader = loader_of(kind)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    state: dict[str, Any] = json.loads(json.dumps(loader.state_dict()))
    return state


@st.composite
def altered(draw: st.DrawFn, sound: Any) -> Any:
    """A state in which one or two values, at any depth, are others, or missing."""
    state = json.loads(json.dumps(sound))
    for _ in range(draw(st.integers(1, 2))):
        at, inside = state, state
        while isinstance(inside, dict) and inside and draw(st.integers(0, 2)):
            name = draw(st.sampled_from(sorted(inside)))
            at, inside = inside, inside[name]
            if not isinstance(inside, dict):
                break
        if at is state and inside is state:
            return draw(plain)
        if draw(st.booleans()):
            at.pop(name)
        else:
            at[name] = draw(plain)
    return state


def went_on(kind: str, state: Any) -> bool:
    """Whether the loader took the state, and then gave only samples that there are."""
    loader = loader_of(kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the samples are others
        try:
            loader.load_state_dict(state)
            given_out = [int(sample) for batch in loader for sample in batch]
        except PlanError as error:
            assert len(str(error)) < 2000
            return False
    assert set(given_out) <= set(range(SAMPLES))
    return True


@often
@given(st.data(), st.sampled_from(KINDS), st.integers(0, 3))
def test_a_state_with_other_values_is_taken_or_refused(data: st.DataObject, kind: str, batches: int) -> None:
    sound = told(kind, batches)
    went_on(kind, data.draw(altered(sound)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_state_is_taken(kind: str) -> None:
    assert went_on(kind, told(kind, 2))


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("sequential", "samples", -1),
        ("sequential", "epoch", "1"),
        ("sequential", "epoch", True),
        ("sequential", "begun", 1),
        ("sequential", "order", []),
        ("sequential", "order", {}),
        ("sequential", "base_seed", 0.5),
        ("sequential", "parts", 7),
        ("shuffled", "order", {"kind": "shuffled"}),
        ("shuffled", "order", {"kind": "shuffled", "seed": 2**70, "replacement": False, "draws": SAMPLES}),
        ("distributed", "samples", SAMPLES + 1),
    ],
)
def test_a_state_says_what_is_wrong_with_it(kind: str, name: str, value: Any) -> None:
    state = {"base_seed": 0, **told(kind, 2), name: value}
    with pytest.raises(PlanError, match="state is damaged: "):
        loader_of(kind).load_state_dict(state)


def test_passes_without_end_are_not_made_again() -> None:
    state = told("by generator", 2)
    state["order"]["passes"] = [10**15]
    with pytest.raises(PlanError, match=r"passes is \[1000000000000000\]"):
        loader_of("by generator").load_state_dict(state)


@often
@given(st.data())
def test_a_sampler_takes_a_state_with_other_values_or_refuses_it(data: st.DataObject) -> None:
    sampler = PlanSampler(Plain(), 2, 0, seed=5)
    try:
        sampler.load_state_dict(data.draw(altered(sampler.state_dict())))
        assert set(sampler) <= set(range(SAMPLES))
    except PlanError as error:
        assert len(str(error)) < 2000
