"""A meeting: all ranks check that what must be the same is the same, and learn which ranks are on their node.

Each rank sends one letter to rank 0 and gets one back: two thousand letters for a thousand ranks. An error on one rank
is raised on all. Ranks wait by polling with short sleeps, so that Ctrl-C ends it, and no longer than allowed. While it
waits, a rank checks that those others of its machine live that it has met before.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from solar import __version__
from solar.errors import PlanError, SolarError
from solar.io.machine.late import asked, until
from solar.io.ranks.alive import Process, Watch, gone, machine
from solar.io.ranks.letters import LETTER_GRACE, Post, longest_nap

log = logging.getLogger("solar")

DIFFERENCES_SHOWN = 3  # differences, and ranks, that a message lists
MEETING_PATIENCE = 10.0  # seconds after which a waiting rank says so
NUDGE = 0.1  # seconds after which rank 0 tells those who wait that it is there
MEETING_PARTING = 1.0  # as long an interrupted rank 0 stays for the others to have its last letter
LAST_WORD = 1.0  # as long who has told rank 0 of a death waits for what it says: it may have given up before

TROUBLE = "trouble"  # the key, among what must be the same, for why a rank cannot take part; None if it can

Letter = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Met:
    """The result of a meeting, for one rank."""

    node_of: tuple[int, ...]  # of each rank its node; nodes are numbered as their lowest ranks follow each other
    mates: dict[int, dict[str, Any]]  # of each rank on this node, itself too, ascending: what it told as its own
    least: dict[str, int]  # over all ranks
    told: Any = None  # what rank 0 tells all


def letter_of(
    what: str,
    same: Mapping[str, Any],
    own: Mapping[str, Any],
    least: Mapping[str, int],
    place: Any,
    process: Process | None,
    tell: Any,
) -> Letter:
    """A rank's letter at a meeting. `place`: its number and the count of ranks on its node; None if unknown."""
    return {
        "what": what,
        "same": {"version of solar": __version__, **same},
        "own": dict(own),
        "least": dict(least),
        "machine": machine(),
        "place": place,
        "process": process,
        "tell": tell,
    }


class Meeting:
    """One meeting, as this rank takes part in it."""

    def __init__(self, post: Post, watch: Watch, number: int, ranks: int, told: Letter, seconds: float) -> None:
        self._post = post
        self._watch = watch
        self._number = number
        self._ranks = ranks
        self._told = told
        self._seconds = seconds
        self._longest = longest_nap(ranks)
        self._begun = time.monotonic()
        self._said = False  # that this rank waits
        self._gone: list[int] = []  # ranks of this machine, as rank 0 was told
        self._came: dict[int, Letter] = {0: told}

    def report(self, rank: int) -> Letter:
        """The answer of rank 0, to one of the others."""
        self._send(0, self._told)
        look = partial(self._say_waiting, f"rank {rank}", "rank 0 to say that all have come")
        seconds = self._seconds
        try:
            while letter := self._until(self._heard, seconds, look):
                if "wait" in letter:  # rank 0 came later than this one: its time is what counts
                    seconds = self._seconds + LETTER_GRACE
                elif "gone" in letter:  # rank 0 may be on another machine
                    seconds = LAST_WORD
                else:
                    if "error" in letter:
                        self._send(0, {"taken": True})
                    return letter
        except BaseException:
            with suppress(RuntimeError):  # the first error counts
                self._send(0, {"left": "was interrupted"})
            raise
        if self._gone:
            raise gone(self._gone, self._ranks)
        self._send(0, {"left": f"waited {self._seconds:g} s and gave up"})
        raise PlanError(late("rank 0, where all ranks meet,", self._told["what"], f"rank {rank}", self._seconds))

    def _heard(self) -> Letter | None:
        """What rank 0 says next; or what it is told: who is gone of this machine. ReadError if it is rank 0."""
        ended = self._watch.ended()  # before the last letter of the dead is looked for
        letter = self._next(0)
        if letter is not None or not ended or self._gone:
            return letter
        self._gone = ended
        if 0 in ended:
            raise gone(ended, self._ranks)
        self._send(0, {"gone": ended})
        return {"gone": ended}

    def _until(self, done: Callable[[], T], seconds: float, look: Callable[[], object] | None = None) -> T:
        return until(asked(done, self._longest), seconds, look)

    def lead(self) -> Letter:
        """The answer to rank 0 itself, when all have theirs."""
        try:
            answers = self._answers()
        except BaseException as error:
            with suppress(RuntimeError):  # the first error counts
                self._tell_error(error)
            raise
        for rank in range(1, self._ranks):
            self._post.send(rank, answers[rank])
        self._stay()
        own: Letter = json.loads(answers[0])
        return own

    def _stay(self) -> None:
        """Waits until all have their answers, for after it this process may end, or destroy its group."""
        waiting = set(range(1, self._ranks))

        def parted() -> bool:
            waiting.intersection_update([rank for rank in waiting if self._post.needed(rank)])
            waiting.difference_update(self._watch.ended())
            return not waiting

        self._until(parted, LETTER_GRACE)

    def _tell_error(self, error: BaseException) -> None:
        """Tells all others. If the letters may go down with this process, stays until those who wait have them."""
        known = isinstance(error, SolarError)
        text = str(error) if known else f"rank 0 left the meeting for {self._told['what']}: {type(error).__name__}"
        for rank in range(1, self._ranks):
            self._send(rank, {"error": text, "kind": type(error).__name__})
        waiting = self._came.keys() - {0}

        def taken() -> bool:
            waiting.difference_update(self._watch.ended(), [rank for rank in waiting if self._next(rank) is not None])
            return not waiting

        self._until(taken, LETTER_GRACE if known else MEETING_PARTING)

    def _answers(self) -> list[bytes]:
        letters = self._letters()
        _check(letters)
        node_of = _nodes(letters)
        names = dict.fromkeys(name for letter in letters for name in letter["least"])
        least = {name: min(of["least"][name] for of in letters if name in of["least"]) for name in names}
        mates: dict[int, dict[int, Any]] = {}
        for rank, node in enumerate(node_of):
            mates.setdefault(node, {})[rank] = letters[rank]["own"]
        common = {"number": self._number, "node_of": node_of, "least": least, "told": self._told["tell"]}
        processes = [letter["process"] for letter in letters]
        answers = {
            node: json.dumps({**common, "mates": of, "processes": _beside(of, processes)}).encode()
            for node, of in mates.items()
        }
        return [answers[node] for node in node_of]

    def _letters(self) -> list[Letter]:
        """The letters of all ranks, in their order."""
        nudged: set[int] = set()

        def look() -> None:
            self._say_waiting("rank 0", f"{_listed(self._missing())} to come")
            if not nudged and time.monotonic() - self._begun > NUDGE:
                nudged.update(self._came)
                for rank in nudged - {0}:
                    self._send(rank, {"wait": True})

        if not self._until(self._all_came, self._seconds, look):
            raise PlanError(late(_listed(self._missing()), self._told["what"], "rank 0", self._seconds))
        self._collect()  # once more: those that came before rank 0 may have left meanwhile
        return [self._came[rank] for rank in range(self._ranks)]

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._ranks) if rank not in self._came]

    def _all_came(self) -> bool:
        ended = self._watch.ended()
        self._collect()
        if ended:
            raise gone(ended, self._ranks)
        return len(self._came) == self._ranks

    def _collect(self) -> None:
        """Takes the letters that are there. An error if one of those that came has left again, or one is gone."""
        for rank in range(1, self._ranks):
            while (letter := self._next(rank)) is not None:
                if "left" in letter:
                    self._came.pop(rank, None)  # it takes no answer
                    raise PlanError(f"rank {rank} came for {self._told['what']}, and {letter['left']}")
                if "gone" in letter:
                    raise gone(letter["gone"], self._ranks)
                self._came[rank] = letter
                self._watch.meet({rank: letter["process"]})

    def _say_waiting(self, who: str, whom: str) -> None:
        """Says it once, when it has lasted."""
        if self._said or time.monotonic() - self._begun < MEETING_PATIENCE:
            return
        self._said = True
        log.warning(
            "%s waits for %s for %s: all ranks must iterate this loader, in the same epoch; it gives up after %g s",
            who, whom, self._told["what"], self._seconds,
        )  # fmt: skip

    def _send(self, rank: int, letter: Letter) -> None:
        self._post.send(rank, json.dumps({"number": self._number, **letter}).encode())

    def _next(self, rank: int) -> Letter | None:
        """The next letter from this rank to this meeting; what is left of others that broke off is thrown away."""
        while (text := self._post.poll(rank)) is not None:
            letter: Letter = json.loads(text)
            if letter["number"] == self._number:
                return letter
        return None


# --- where they are ----


def _beside(node: Iterable[int], processes: Sequence[Process | None]) -> dict[int, Process]:
    """Of the processes of all ranks those that the ranks of a node can look after, also if they are of another node."""
    places = {process[0] for process in (processes[rank] for rank in node) if process is not None}
    return {rank: process for rank, process in enumerate(processes) if process is not None and process[0] in places}


def _nodes(letters: Sequence[Letter]) -> list[int]:
    """The number of each rank's node.

    A machine is as many nodes as the launcher makes of it: two ranks with the same place are not on one.
    """
    nodes: list[int] = []
    count = 0
    known: dict[str, list[tuple[int, set[int]]]] = {}  # of each machine its nodes, and the places taken there
    for letter in letters:
        place, places = letter["place"] or (None, None)
        on_machine = known.setdefault(json.dumps([letter["machine"], places]), [])
        node = next((node for node in on_machine if place is None or place not in node[1]), None)
        if node is None:
            node = count, set()
            on_machine.append(node)
            count += 1
        if place is not None:
            node[1].add(place)
        nodes.append(node[0])
    return nodes


# --- what is wrong ----


def _check(letters: Sequence[Letter]) -> None:
    """PlanError unless all ranks came for the same purpose, with the same values."""
    ours = letters[0]["what"]
    found = _differing([letter["what"] for letter in letters])
    if found:
        others = "; ".join(f"{_listed(ranks)} for {json.loads(what)}" for what, ranks in found[:DIFFERENCES_SHOWN])
        raise PlanError(
            f"the ranks do not meet for the same: rank 0 came for {ours}, {others}{_more(found)}. All ranks must "
            'iterate the same loaders in the same order; with exchange="off" each reads on its own'
        )
    troubles = [letter["same"].get(TROUBLE) for letter in letters]
    if len(set(troubles)) > 1:  # where all have the same, each raises its own
        trouble = next(one for one in troubles if one is not None)
        who = _listed([rank for rank, one in enumerate(troubles) if one == trouble])
        raise PlanError(f"{who} cannot take part in {ours}: {trouble}")
    names = dict.fromkeys(name for letter in letters for name in letter["same"])
    differences = [
        (name, value, ranks)
        for name in names
        for value, ranks in _differing([letter["same"].get(name) for letter in letters])
    ]
    if differences:
        texts = [
            f"{_listed(ranks)} {'has' if len(ranks) == 1 else 'have'} {name} {_short(value)}, "
            f"rank 0 has {_short(_text(letters[0]['same'].get(name)))}"
            for name, value, ranks in differences[:DIFFERENCES_SHOWN]
        ]
        raise PlanError(
            f"the ranks do not agree on {ours}: {'; '.join(texts)}{_more(differences)}. Give all of them the same; "
            'with exchange="off" each reads on its own'
        )


def _differing(values: Sequence[Any]) -> list[tuple[str, list[int]]]:
    """Each value that is not rank 0's, as text, and the ranks that have it."""
    ranks_of: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks_of.setdefault(_text(value), []).append(rank)
    return list(ranks_of.items())[1:]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]} ... {text[-15:]}"


def _more(found: Sequence[Any]) -> str:
    return f"; and {len(found) - DIFFERENCES_SHOWN} more" if len(found) > DIFFERENCES_SHOWN else ""


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:DIFFERENCES_SHOWN]))
    return (
        f"ranks {shown} and {len(ranks) - DIFFERENCES_SHOWN} more"
        if len(ranks) > DIFFERENCES_SHOWN
        else f"ranks {shown}"
    )


def late(who: str, what: str, waiting: str, seconds: float) -> str:
    return (
        f"{who} did not come for {what}: {waiting} waited {seconds:g} s. All ranks must iterate this loader, at about "
        'the same time; with exchange="off" each reads on its own'
    )
