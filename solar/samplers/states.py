"""Checks the state of a loader before it is used, because the file that it comes from may hold anything."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from solar.errors import PlanError

LONGEST_VALUE = 60  # letters of a value in a message
COUNT = (0, 2**63 - 1)
SEED = (-(2**63), 2**64 - 1)  # what torch takes for one
# What of an order must be the same, and what is said where it is not. A plain shuffle has none of it.
UNLIKE = {
    "by": "by {was}, and this sampler's is by {now} (None: a plain shuffle): make it with the same arguments",
    "num_samples": "of {was} samples, and this sampler's is of {now}: give the same num_samples",
    "study": "of study {was}, and this sampler's is of study {now}: their jobs want other samples together. Give the "
    "same study",
    "block": "with blocks of {was} samples, and this sampler's have {now}: give the same block",
    "window": "with windows of {was} samples, and this sampler's have {now}: give the same window",
    "stretch": "whose stretches have {was} samples, and this sampler's have {now}: give the same stretch of the study",
    "digest": "by other {by} (their digest is {was}, this sampler's have {now}): what is left has nothing to do with "
    "what came before. Give the same again, or begin without the state",
}
MOST_BEHIND = 1_000_000  # batches that may be handed out before one that was drawn earlier
MOST_PASSES = 1_000_000  # redrawn at most to bring a generator to its old state


def check_values(state: dict[str, Any]) -> None:
    """Raises PlanError unless each value of a state has the right type. All keys must be there already."""
    for name in ("epoch", "repeat", "batches", "samples"):
        _check_number(name, state[name], COUNT)
    for name in ("drawn", "begun"):
        if not isinstance(state[name], bool):
            refuse_state(name, state[name])
    if state.get("base_seed") is not None:
        _check_number("base_seed", state["base_seed"], COUNT)
    for name in ("order", "parts"):
        if not isinstance(state.get(name, {}), dict):
            refuse_state(name, state[name])
    counts = state.get("given", [])
    if not isinstance(counts, list):
        refuse_state("given", counts)
    for number in counts:
        _check_number("given", number, COUNT)
    if "gaps" in state:
        _check_gaps(state["gaps"])
    if not isinstance(state["order"].get("kind"), str):
        refuse_state("the order's kind", state["order"].get("kind"))
    at, length = state["samples"], state["order"].get("num_samples", state["length"])
    if state["order"]["kind"] == "distributed" and isinstance(length, int) and at > length:
        raise PlanError(f"the state is damaged: it is behind {at} samples of {length}")


def _check_gaps(gaps: Any) -> None:
    """Raises PlanError unless they are numbers of batches in ascending order, below the number of those drawn."""
    if not isinstance(gaps, dict) or gaps.keys() != {"of", "left"} or not isinstance(gaps["left"], list):
        refuse_state("gaps", gaps)
    _check_number("gaps", gaps["of"], (0, MOST_BEHIND))
    least = 0
    for number in gaps["left"]:
        _check_number("gaps", number, (least, gaps["of"] - 1))
        least = number + 1


def check_order(saved: Mapping[str, Any], names: Sequence[str]) -> None:
    """PlanError unless the saved order has these keys, and numbers where numbers belong."""
    if missing := [name for name in names if name not in saved]:
        raise PlanError(f"the state is damaged: it lacks {', '.join(missing)}")
    for name, limits in (("seed", SEED), ("epoch", COUNT), ("draws", COUNT), ("samples", COUNT)):
        if name in names:
            _check_number(name, saved[name], limits)
    if "passes" in names:
        passes = saved["passes"]
        if not isinstance(passes, list) or len(passes) > MOST_PASSES:
            refuse_state("passes", passes)
        for times in passes:
            _check_number("passes", times, COUNT)
        if sum(passes) > MOST_PASSES:
            refuse_state("passes", passes)


def check_by(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """PlanError unless the saved order was made of what the sampler's own is made of."""
    for name, said in UNLIKE.items():
        was, now = saved.get(name), own.get(name)
        if was != now:
            words = said.format(was=_state_text(was), now=_state_text(now), by=own.get("by"))
            raise PlanError(f"the state is of an order {words}")


def _check_number(name: str, value: object, limits: tuple[int, int]) -> None:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        refuse_state(name, value)
    else:
        if isinstance(value, bool) or not limits[0] <= number <= limits[1]:
            refuse_state(name, value)


def refuse_state(name: str, value: object) -> None:
    raise PlanError(f"the state is damaged: {name} is {_state_text(value)}")


def _state_text(value: object) -> str:
    said = repr(value)
    return said if len(said) <= LONGEST_VALUE else said[:LONGEST_VALUE] + "…"
