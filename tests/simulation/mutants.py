"""Faults of the past, and their like: each changes some words of the code, and a seed must find it."""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    """Other words for some of a function's."""

    module: str
    function: str
    words: str
    others: str


MUTANTS: dict[str, Mutant | list[Mutant]] = {
    "the service answers another user": Mutant(
        "solar.service.service", "Service._let_in", "not may_come(peer, self.group) or not", "not"
    ),
    "a job talks to a service of another user": Mutant(
        "solar.io.channels.service_sockets", "connect", "peer_of(peer)[1] != user", "False"
    ),
    "a message that comes in parts is taken for a whole one": Mutant(
        "solar.io.channels.frames", "_exactly", "while len(found) < size", "while not found"
    ),
    "what is sent in parts is sent in part": Mutant(
        "solar.io.channels.frames", "send", "if sent < len(whole)", "if False"
    ),
    "a service keeps what it was handed open": Mutant(
        "solar.service.service", "Service._serve", "close_all(descriptors)", "pass"
    ),
    "a job that went stays a member": Mutant("solar.service.service", "Clients.remove", "hall.leave(member)", "pass"),
    "a job is told nothing when it is left behind": Mutant(
        "solar.service.window", "Member.detach", "self.ledger.gone(self.ledger.made)", "pass"
    ),
    "a step is freed when the first job has copied it": Mutant(
        "solar.service.shared_reader", "SharedReader._give_back", "while announced and all(", "while announced and any("
    ),
    "nobody is ever left behind": Mutant(
        "solar.service.pace", "StragglerPolicy.behind", "> self._of(one, members)", "> 1e9"
    ),
    "who joins a reader that ends waits in vain": Mutant(
        "solar.service.shared_reader", "SharedReader.join", "if self._closing:", "if False:"
    ),
    "a new data set takes memory that others have": Mutant(
        "solar.service.shared_reader",
        "SharedReaders.of",
        "if one.memory != parts.get(facts) or one.over",
        "if one.over",
    ),
    "a batch that does not come is waited for each time": Mutant(
        "solar.service.served_run",
        "Membership.copy",
        "naps = 1 if self._timed_out else min(self._naps, int(COME_WITHIN / NAP))",
        "naps, self._naps = int(COME_WITHIN / NAP), FAR_OFF",
    ),
    "larger batches of a later epoch are waited for in vain": Mutant(
        "solar.service.served_run", "Membership.more", "self.refused = min(self.refused, base)", "pass"
    ),
    "a training fails when its service has ended": Mutant(
        "solar.service.served_passes",
        "ServedPasses._find",
        "if named and not self._met and not named[0].exists()",
        "if named and not named[0].exists()",
    ),
    "a later message is asked for without patience": Mutant(
        "solar.service.connection", "ServiceConnection.stands", "self._peer.settimeout(ANSWER_WITHIN)", "pass"
    ),
    "others get wrong samples when the first job has no batches left": Mutant(
        "solar.service.window",
        "JobOrder.stretch",
        "None if self.epochs[-1].which is None else",
        "None if not several else",
    ),
    "a plan waits for ever for a job that came meanwhile": Mutant(
        "solar.service.shared_reader", "SharedReader._tell", "self.changed.notify_all()", "pass"
    ),
    "services that end in one moment begin what others do not": Mutant(
        "solar.service.scheduler", "Scheduler._begin_run", "self.cluster.all(None, or_none=True)", "pass"
    ),
    "a service does not say that it will not begin": Mutant(
        "solar.service.nodes", "Nodes._hear_bye", "if one is None and number > self._ended.get(key, 0):", "if False:"
    ),
    "the condition of a reader changes while it is held": [
        Mutant(
            "solar.service.cluster",
            "Cluster.__init__",
            "self.changed = threading.Condition()",
            "self.changed = threading.Condition(); self.later = threading.Condition()",
        ),
        Mutant(
            "solar.service.cluster", "Cluster.begin", "self._give_up =", "self.changed, self._give_up = self.later,"
        ),
        Mutant(
            "solar.service.scheduler",
            "Scheduler.__init__",
            "cluster.changed",
            "getattr(cluster, 'later', None) or cluster.changed",
        ),
    ],
    "a bell that was closed is handed to a job": [
        Mutant("solar.service.shared_reader", "SharedReader.admit", "if self.bell < 0:", "if False:"),
        Mutant("solar.service.shared_reader", "SharedReader.admit", "os.dup(one)", "one"),
        Mutant("solar.service.service", "Service._answer", "close_all(handed_on)", "pass"),
    ],
    "an exchange ends while rows are on their way": Mutant(
        "solar.distributed.ending", "Ending.sum_up", "if sent == received", "if True"
    ),
    "what comes late to an exchange that ends is not told": Mutant(
        "solar.distributed.ending", "Ending.has_told", "return self.sum_up()", "return []"
    ),
    "a rank that has closed does not answer": Mutant(
        "solar.distributed.ending", "Ending.is_asked", "return self._closed", "return False"
    ),
    "a question goes between the head and the rows of another message": Mutant(
        "solar.distributed.exchange", "TransferThreads._letter", "with self.peers.sending:", "if True:"
    ),
    "an exchange keeps its memory after its end": Mutant(
        "solar.distributed.exchange", "TransferThreads._closed", "if not self._open and self in _left", "if False"
    ),
    "a batch is handed on before the rows of other nodes have come": Mutant(
        "solar.distributed.exchange",
        "PendingExchange._is_whole",
        "batch is not None and batch.whole",
        "batch is not None and not batch.taken",
    ),
}


def seams(name: str) -> list[tuple[Any, str, Any]]:
    """Returns where the functions of a mutant are, also by import, their names, and the changed ones."""
    found = MUTANTS[name]
    made = [changed(one) for one in ([found] if isinstance(found, Mutant) else found)]
    return [other for one in made for other in (one, *imported(*one))]


def imported(owner: Any, name: str, made: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yields the other modules that have imported a function by its name, with their names for it."""
    function = owner.__dict__[name]
    for module in [one for key, one in sys.modules.items() if key.startswith("solar.") and one is not owner]:
        yield from ((module, of, made) for of, value in vars(module).items() if value is function)


def changed(mutant: Mutant) -> tuple[Any, str, Any]:
    module: Any = importlib.import_module(mutant.module)
    *owners, name = mutant.function.split(".")
    owner = module
    for one in owners:
        owner = getattr(owner, one)
    source = textwrap.dedent(inspect.getsource(owner.__dict__[name]))
    assert mutant.words in source, f"{mutant.function} has other words: {mutant.words}"
    source = "from __future__ import annotations\n" + source.replace(mutant.words, mutant.others)
    made: dict[str, Any] = {}
    exec(compile(source, mutant.function, "exec"), vars(module), made)
    return owner, name, made[name]
