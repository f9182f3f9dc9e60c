"""Checks a loader's state before it is used, for anybody may have written the file it comes from."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from solar.errors import PlanError

LONGEST_VALUE = 60  # letters of a value in a message
COUNT = (0, 2**63 - 1)
SEED = (-(2**63), 2**64 - 1)  # what torch takes for one
MOST_PASSES = 1_000_000  # redrawn at most to bring a generator to its old state


def check_values(state: dict[str, Any]) -> None:
    """PlanError unless each value of a state has the right type. All keys must be there already."""
    for name in ("epoch", "repeat", "batches", "samples"):
        _check_number(name, state[name], COUNT)
    for name in ("drawn", "begun"):
        if not isinstance(state[name], bool):
            _refuse(name, state[name])
    if state.get("base_seed") is not None:
        _check_number("base_seed", state["base_seed"], COUNT)
    for name in ("order", "parts"):
        if not isinstance(state.get(name, {}), dict):
            _refuse(name, state[name])
    if not isinstance(state["order"].get("kind"), str):
        _refuse("the order's kind", state["order"].get("kind"))
    at, length = state["samples"], state["order"].get("num_samples", state["length"])
    if state["order"]["kind"] == "distributed" and isinstance(length, int) and at > length:
        raise PlanError(f"the state is damaged: it is behind {at} samples of {length}")


def check_order(told: Mapping[str, Any], names: Sequence[str]) -> None:
    """PlanError unless the saved order has these keys, and numbers where numbers belong."""
    if missing := [name for name in names if name not in told]:
        raise PlanError(f"the state is damaged: it lacks {', '.join(missing)}")
    for name, limits in (("seed", SEED), ("epoch", COUNT), ("draws", COUNT), ("samples", COUNT)):
        if name in names:
            _check_number(name, told[name], limits)
    if "passes" in names:
        passes = told["passes"]
        if not isinstance(passes, list) or len(passes) > MOST_PASSES:
            _refuse("passes", passes)
        for times in passes:
            _check_number("passes", times, COUNT)
        if sum(passes) > MOST_PASSES:
            _refuse("passes", passes)


def check_by(told: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """PlanError unless the saved order was made of what the sampler's own is made of."""
    was, now = (one.get("by", "a plain shuffle") for one in (told, own))
    if was != now:
        raise PlanError(
            f"the state is of an order by {was}, this sampler's is by {now}: make it with the same arguments"
        )
    if told.get("num_samples") != own.get("num_samples"):
        raise PlanError(
            f"the state is of epochs of {told.get('num_samples')} samples, this sampler's have {own['num_samples']}: "
            f"make it with the same num_samples"
        )
    if told.get("digest") != own.get("digest"):
        raise PlanError(
            f"the state is of an order by other {was} (its digest is {told.get('digest')}, this sampler's is "
            f"{own['digest']}): what is left has nothing to do with what came before. Give the same {was} again, or "
            "begin without the state"
        )


def _check_number(name: str, value: object, limits: tuple[int, int]) -> None:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        _refuse(name, value)
    else:
        if isinstance(value, bool) or not limits[0] <= number <= limits[1]:
            _refuse(name, value)


def _refuse(name: str, value: object) -> None:
    said = repr(value)
    raise PlanError(
        f"the state is damaged: {name} is {said if len(said) <= LONGEST_VALUE else said[:LONGEST_VALUE] + '…'}"
    )
