"""Meetings: all ranks check that what must be equal is equal. Peers: ranks that share samples.

Each rank sends one message to rank 0 and gets one back: two thousand messages for a thousand ranks. An error on one
rank is raised on all. Ranks wait by polling with short sleeps, so that Ctrl-C ends it, and no longer than allowed.
While it waits, a rank checks that the others live: those of its machine that it has met before, and those of other
machines as soon as they have come to the first meeting, at which each hears where to connect (lifeline.py).
"""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from solar import __version__
from solar.errors import PlanError, ReadError, SolarError
from solar.io.channels.alive import BURIAL, Process, Watch, gone, machine_id, meeting_others
from solar.io.channels.control import LETTER_GRACE, ControlChannel, default_store, longest_nap, posted
from solar.io.channels.world import detect, distributed_module, launched_ranks, mpi_module, place_on_node
from solar.io.system.waiting import polling, until
from solar.values import World

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
class MeetingResult:
    """The result of a meeting, for one rank."""

    node_of: tuple[int, ...]  # of each rank its node; nodes are numbered as their lowest ranks follow each other
    mates: dict[int, dict[str, Any]]  # of each rank on this node, itself too, ascending: what it told as its own
    least: dict[str, int]  # over all ranks
    answer: Any = None  # what rank 0 tells all


def letter_of(
    what: str,
    same: Mapping[str, Any],
    own: Mapping[str, Any],
    least: Mapping[str, int],
    place: Any,
    process: Process | None,
    tell: Any,
    line: Any = None,
) -> Letter:
    """Returns a rank's message for a meeting.

    `place`: its number on its node and how many ranks that has; None if unknown. `line` is where other machines reach
    it, if there are any.
    """
    with meeting_others():
        machine = machine_id()
    return {
        "what": what,
        "same": {"version of solar": __version__, **same},
        "own": dict(own),
        "least": dict(least),
        "machine": machine,
        "place": place,
        "process": process,
        "tell": tell,
        "line": line,
    }


class Meeting:
    """One meeting, as this rank takes part in it."""

    def __init__(
        self, post: ControlChannel, watch: Watch, number: int, ranks: int, letter: Letter, seconds: float
    ) -> None:
        self._post = post
        self._watch = watch
        self._number = number
        self._ranks = ranks
        self._letter = letter
        self._seconds = seconds
        self._longest = longest_nap(ranks)
        self._begun = time.monotonic()
        self._said = False  # that this rank waits
        self._gone: list[int] = []  # ranks of this machine, as rank 0 was told
        self._came: dict[int, Letter] = {0: letter}

    def report(self, rank: int) -> Letter:
        """Sends this rank's message, on another rank than 0. Returns rank 0's answer."""
        self._send(0, self._letter)
        look = partial(self._say_waiting, f"rank {rank}", "rank 0 to say that all have come")
        seconds = self._seconds
        try:
            while letter := self._until(self._heard, seconds, look):
                if "above" in letter:
                    self._watch.extend(self._ranks).join(letter["above"])
                elif "wait" in letter:  # rank 0 came later than this one: its time is what counts
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
        raise PlanError(late("rank 0, where all ranks meet,", self._letter["what"], f"rank {rank}", self._seconds))

    def _heard(self) -> Letter | None:
        """Returns what rank 0 says next, or who is gone of this machine. Raises ReadError if that is rank 0."""
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
        return until(polling(done, self._longest), seconds, look)

    def lead(self) -> Letter:
        """Answers all ranks, on rank 0. Returns its own answer when all have theirs."""
        try:
            answers = self._answers()
        except BaseException as error:
            with suppress(RuntimeError):  # the first error counts
                self._tell_error(error)
            raise
        for rank in range(1, self._ranks):
            self._post_to(rank, answers[rank])
        self._stay()
        own: Letter = json.loads(answers[0])
        return own

    def _stay(self) -> None:
        """Waits until all have their answers, because after it this process may end, or destroy its group."""
        waiting = set(range(1, self._ranks))

        def parted() -> bool:
            waiting.intersection_update([rank for rank in waiting if self._post.needed(rank)])
            waiting.difference_update(self._watch.ended())
            return not waiting

        self._until(parted, LETTER_GRACE)

    def _tell_error(self, error: BaseException) -> None:
        """Tells all others. If messages may be lost with this process, waits until those who wait have them."""
        known = isinstance(error, SolarError)
        text = str(error) if known else f"rank 0 left the meeting for {self._letter['what']}: {type(error).__name__}"
        for rank in range(1, self._ranks):
            self._send(rank, {"error": text, "kind": type(error).__name__})
        waiting = self._came.keys() - {0}

        def taken() -> bool:
            waiting.difference_update(self._watch.ended(), [rank for rank in waiting if self._next(rank) is not None])
            return not waiting

        self._until(taken, LETTER_GRACE if known else MEETING_PARTING)

    def _answers(self) -> list[bytes]:
        letters = self._letters()
        check_purpose(letters)
        node_of = nodes_of_ranks(letters)
        names = dict.fromkeys(name for letter in letters for name in letter["least"])
        least = {name: min(of["least"][name] for of in letters if name in of["least"]) for name in names}
        mates: dict[int, dict[int, Any]] = {}
        for rank, node in enumerate(node_of):
            mates.setdefault(node, {})[rank] = letters[rank]["own"]
        common = {"number": self._number, "node_of": pack_nodes(node_of), "least": least, "told": self._letter["tell"]}
        processes = [letter["process"] for letter in letters]
        answers = {
            node: json.dumps({**common, "mates": of, "processes": processes_of_node(of, processes)}).encode()
            for node, of in mates.items()
        }
        return [answers[node] for node in node_of]

    def _letters(self) -> list[Letter]:
        """Returns the messages of all ranks, in order."""
        nudged: set[int] = set()

        def look() -> None:
            self._say_waiting("rank 0", f"{list_ranks(self._missing())} to come")
            if not nudged and time.monotonic() - self._begun > NUDGE:
                nudged.update(self._came)
                for rank in nudged - {0}:
                    self._send(rank, {"wait": True})

        if not self._until(self._all_came, self._seconds, look):
            raise PlanError(late(list_ranks(self._missing()), self._letter["what"], "rank 0", self._seconds))
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
        """Receives the messages that have arrived. Raises if one of their ranks has left again, or one is gone."""
        for rank in range(1, self._ranks):
            while (letter := self._next(rank)) is not None:
                if "left" in letter:
                    self._came.pop(rank, None)  # it takes no answer
                    raise PlanError(f"rank {rank} came for {self._letter['what']}, and {letter['left']}")
                if "gone" in letter:
                    raise gone(letter["gone"], self._ranks)
                self._came[rank] = letter
                self._watch.meet({rank: letter["process"]})
                if letter["line"] is not None and (
                    above := self._watch.extend(self._ranks).above(rank, letter["line"])
                ):
                    self._send(rank, {"above": above})

    def _say_waiting(self, who: str, whom: str) -> None:
        """Says once that it waits, when it has lasted."""
        if self._said or time.monotonic() - self._begun < MEETING_PATIENCE:
            return
        self._said = True
        log.warning(
            "%s waits for %s for %s: all ranks must iterate this loader, in the same epoch; it gives up after %g s",
            who, whom, self._letter["what"], self._seconds,
        )  # fmt: skip

    def _send(self, rank: int, letter: Letter) -> None:
        self._post_to(rank, json.dumps({"number": self._number, **letter}).encode())

    def _post_to(self, rank: int, text: bytes) -> None:
        """Sends a message, except to a rank that is gone, where MPI would block."""
        if rank not in self._watch.ended():
            self._post.send(rank, text)

    def _next(self, rank: int) -> Letter | None:
        """Returns the next message from this rank to this meeting, discarding those of meetings that broke off."""
        while (text := self._post.poll(rank)) is not None:
            letter: Letter = json.loads(text)
            if letter["number"] == self._number:
                return letter
        return None


# --- where they are ----


def processes_of_node(node: Iterable[int], processes: Sequence[Process | None]) -> dict[int, Process]:
    """Returns the processes that the ranks of a node can watch, also if they are of another node."""
    places = {process[0] for process in (processes[rank] for rank in node) if process is not None}
    return {rank: process for rank, process in enumerate(processes) if process is not None and process[0] in places}


def nodes_of_ranks(letters: Sequence[Letter]) -> list[int]:
    """Returns the number of each rank's node.

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


def pack_nodes(node_of: Sequence[int]) -> str:
    """Returns the node of each rank in few characters, because each rank gets it: launchers place ranks regularly."""
    steps = np.diff(np.array(node_of, "<i4"), prepend=0).astype("<i4")
    return base64.b85encode(zlib.compress(steps.tobytes(), 9)).decode()


def unpack_nodes(packed: str, ranks: int) -> tuple[int, ...]:
    steps = np.frombuffer(zlib.decompressobj().decompress(base64.b85decode(packed), 4 * ranks), "<i4")
    if len(steps) != ranks:
        raise PlanError(f"rank 0 tells the nodes of {len(steps)} ranks, and there are {ranks}")
    return tuple(np.cumsum(steps).tolist())


# --- what is wrong ----


def check_purpose(letters: Sequence[Letter]) -> None:
    """Raises PlanError unless all ranks came for the same purpose, with equal values."""
    ours = letters[0]["what"]
    found = _differing([letter["what"] for letter in letters])
    if found:
        others = "; ".join(f"{list_ranks(ranks)} for {json.loads(what)}" for what, ranks in found[:DIFFERENCES_SHOWN])
        raise PlanError(
            f"the ranks do not meet for the same: rank 0 came for {ours}, {others}{_more(found)}. All ranks must "
            'iterate the same loaders in the same order; with exchange="off" each reads on its own'
        )
    troubles = [letter["same"].get(TROUBLE) for letter in letters]
    if len(set(troubles)) > 1:  # where all have the same, each raises its own
        trouble = next(one for one in troubles if one is not None)
        who = list_ranks([rank for rank, one in enumerate(troubles) if one == trouble])
        raise PlanError(f"{who} cannot take part in {ours}: {trouble}")
    names = dict.fromkeys(name for letter in letters for name in letter["same"])
    differences = [
        (name, value, ranks)
        for name in names
        for value, ranks in _differing([letter["same"].get(name) for letter in letters])
    ]
    if differences:
        texts = [
            f"{list_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} {name} {shortened(value)}, "
            f"rank 0 has {shortened(as_json_text(letters[0]['same'].get(name)))}"
            for name, value, ranks in differences[:DIFFERENCES_SHOWN]
        ]
        raise PlanError(
            f"the ranks do not agree on {ours}: {'; '.join(texts)}{_more(differences)}. Give all of them the same; "
            'with exchange="off" each reads on its own'
        )


def _differing(values: Sequence[Any]) -> list[tuple[str, list[int]]]:
    """Returns each value that differs from rank 0's, as text, and the ranks that have it."""
    ranks_of: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks_of.setdefault(as_json_text(value), []).append(rank)
    return list(ranks_of.items())[1:]


def as_json_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]} ... {text[-15:]}"


def _more(found: Sequence[Any]) -> str:
    return f"; and {len(found) - DIFFERENCES_SHOWN} more" if len(found) > DIFFERENCES_SHOWN else ""


def list_ranks(ranks: Sequence[int]) -> str:
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


# Peers: the ranks that share a loader's samples, if they can send each other messages.


EXCHANGES = ("auto", "mpi", "torch", "read", "off")


class Peers:
    """The ranks that meet, as one of them sees them. `peers` makes it."""

    def __init__(self, rank: int, ranks: int, by: str, group: int = 0) -> None:
        self.rank = rank
        self.ranks = ranks
        self.by = by  # "mpi" or "torch"
        self._group = group
        self.pid = os.getpid()
        self._one = threading.Lock()  # one meeting at a time
        self._post: ControlChannel | None = None
        self._watch = Watch(rank)
        self._number = 0  # of the meetings so far: the same letter must not be taken for the next one's

    def __repr__(self) -> str:
        return f"Peers(rank {self.rank} of {self.ranks}, by {self.by})"

    def meet(
        self,
        what: str,
        same: Mapping[str, Any],
        own: Mapping[str, Any],
        least: Mapping[str, int],
        seconds: float = 300,
        tell: Any = None,
    ) -> MeetingResult:
        """Returns what all ranks have in common, once all have come for `what`, which messages mention.

        Values are those of JSON. Raises PlanError on every rank if `same` differs anywhere, if one comes for something
        else, or if one does not come within `seconds` of the others; ReadError if a rank that was met before, or has
        come, is gone. `tell` is a value of rank 0, which all get as `answer`.
        """
        if os.getpid() != self.pid:
            raise PlanError(self.forked())
        place, process = place_on_node(self.rank, self.ranks), self._watch.own
        first = self._number == 0 and (place is None or place[1] < self.ranks)  # and all may not be on one machine
        line = self._watch.extend(self.ranks).address() if first else None
        letter = letter_of(what, same, own, least, place, process, tell if self.rank == 0 else None, line)
        with self._one:
            try:
                answer = self._meet_once(letter, seconds)
            except RuntimeError as error:
                raise self._cut_off(what, error) from error
        if "error" in answer:
            raise (ReadError if answer["kind"] == "ReadError" else PlanError)(answer["error"])
        self._watch.meet({int(rank): process for rank, process in answer["processes"].items()})
        mates = {int(rank): own for rank, own in answer["mates"].items()}
        return MeetingResult(unpack_nodes(answer["node_of"], self.ranks), mates, answer["least"], answer["told"])

    def check(self) -> None:
        """Raises ReadError if a process is gone that this one has met."""
        ended = self.ended()
        if ended:
            raise gone(ended, self.ranks)

    def ended(self) -> list[int]:
        """Returns the ranks that this one has met and whose processes have ended."""
        return self._watch.ended()

    def _cut_off(self, what: str, error: RuntimeError) -> PlanError:
        """Returns the error if no message can be sent."""
        head = f"rank {self.rank} of {self.ranks} cannot reach the others for {what}, by {self.by} ({error})"
        if ended := until(polling(partial(self._watch.ended, now=True)), BURIAL):
            return PlanError(f"{head}: {gone(ended, self.ranks)}")
        where = "rank 0" if self.by == "torch" else "a rank"
        return PlanError(f"{head}: {where} of {self.ranks}, or what started them all, has ended")

    def forked(self) -> str:
        """Returns the error for a process that has these Peers from its parent."""
        return f"process {os.getpid()} was forked from rank {self.rank}: only that one can meet the others"

    def _meet_once(self, letter: dict[str, Any], seconds: float) -> dict[str, Any]:
        if self._post is None:
            self._post = posted(self.by, self.rank, self._group)
        if not until(polling(self._post.ready, longest_nap(self.ranks)), seconds):
            raise PlanError(late(f"some of the {self.ranks} ranks", letter["what"], f"rank {self.rank}", seconds))
        self._number += 1
        meeting = Meeting(self._post, self._watch, self._number, self.ranks, letter, seconds)
        return meeting.lead() if self.rank == 0 else meeting.report(self.rank)


# --- who they are ----

_made: dict[str, tuple[Peers, Callable[[], Any]]] = {}  # by kind, with what gives the group they were made of
_groups = 0  # process groups of torch that this process has met in
_said: set[str] = set()


def peers(exchange: str = "auto") -> Peers | None:
    """Returns the ranks that this process meets; None if it is alone, if ranks cannot talk, or if exchange is "off".

    "auto" and "read" use torch.distributed if it is initialised, else MPI if the program has imported mpi4py.MPI, in
    the order in which `detect` takes the rank from them, so that one numbering counts. "mpi" and "torch" use that one,
    and raise PlanError if it is not there. Every process makes them once, and no message is sent before they meet.
    """
    if exchange not in EXCHANGES:
        raise ValueError(f"exchange={exchange!r}: one of {', '.join(map(repr, EXCHANGES))}")
    if exchange == "off":
        return None
    world = detect()
    by = exchange if exchange in ("mpi", "torch") else _voice(world)
    if by is None:
        return None
    if by == "torch":
        _check_torch()
    else:
        check_mpi_world(world)
    if world.ranks == 1:
        return None
    found = kept_peers(by, world)
    if found.pid != os.getpid():
        if exchange == by:
            raise PlanError(found.forked())
        _say_once("this process was forked from a rank: it reads on its own, others share")
        return None
    return found


def _voice(world: World) -> str | None:
    """Returns the means by which ranks can talk; None if there is none, or only one rank."""
    distributed = distributed_module()
    if distributed is not None and (world.ranks == 1 or default_store(distributed) is not None):
        return "torch"
    if mpi_module() is not None:
        return "mpi"
    by, ranks = launched_ranks()
    if distributed is not None:
        _say_once("torch.distributed has no store, and MPI is not there: each rank reads on its own, nothing is shared")
    elif ranks > 1:
        _say_once(
            f"{by} says that there are {ranks} ranks, but neither is torch.distributed initialised nor mpi4py.MPI "
            "imported: each rank reads on its own, and nothing is shared"
        )
    return None


def _check_torch() -> None:
    distributed = distributed_module()
    if distributed is None:
        raise PlanError(
            'exchange="torch", but torch.distributed is not initialised: call torch.distributed.init_process_group '
            'before the loader is iterated, or leave exchange="auto"'
        )
    if distributed.get_world_size() > 1 and default_store(distributed) is None:
        raise PlanError(
            'exchange="torch", but the process group has no store, as with the backend "mpi": import mpi4py.MPI and '
            'use exchange="mpi"'
        )


def check_mpi_world(world: World) -> None:
    mpi = mpi_module()
    if mpi is None:
        raise PlanError(
            'exchange="mpi", but MPI has not begun: import mpi4py.MPI before the loader is iterated '
            '(pip install solar[mpi], or mpi4py built for the cluster\'s MPI), or leave exchange="auto"'
        )
    rank, ranks = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
    if (rank, ranks) != (world.rank, world.ranks):
        raise PlanError(
            f'exchange="mpi", but MPI says rank {rank} of {ranks} and torch.distributed, which counts, rank '
            f'{world.rank} of {world.ranks}: use exchange="torch", or initialise the process group with MPI\'s ranks'
        )


def kept_peers(by: str, world: World) -> Peers:
    """Returns the Peers of this process by this means, made if there are none yet or the process group is a new one."""
    global _groups
    group = distributed_module().group.WORLD if by == "torch" else mpi_module()
    kept = _made.get(by)
    if kept is not None and kept[1]() is group:
        return kept[0]
    _groups += by == "torch"
    found = Peers(world.rank, world.ranks, by, _groups)
    _made[by] = found, weakref.ref(group)
    return found


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        log.info(text)
