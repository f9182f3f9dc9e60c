"""RankGroup: the ranks that share the samples of a loader, and read, hold and exchange them together."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from solar.buffer.buffer_memory import layouts_of_source
from solar.buffer.located import located, pieces_of, used_by
from solar.buffer.shared_plans import SharedPlans
from solar.errors import PlanError, ReadError
from solar.io.reading.reader import Rows
from solar.io.reading.run import Run, Running, shared_nbytes
from solar.io.system.waiting import RANKS_PATIENCE
from solar.planning.budget import Needs
from solar.planning.pass_uses import PassUses, SampleUses
from solar.planning.planned_passes import Piece
from solar.planning.sharing import Who
from solar.samplers.index_stream import Array, IndexStream, Pass
from solar.samples.pending import leaves
from solar.samples.source import SampleSource
from solar.values import RunPart

if TYPE_CHECKING:
    from solar.io.channels.meeting import Peers

PATIENCE, PATIENCE_UNASKED = RANKS_PATIENCE, 60.0  # where somebody asked for a buffer, and where nobody did


class DividedPass(NamedTuple):
    """A pass as one rank sees it."""

    segment: PassUses
    batches: Pass  # the samples of its batches, as the dataset calls them
    facts: dict[str, Any]  # what must be the same on all ranks


class RankGroup:
    """The ranks of a loader: which rank uses which samples, and which node reads them.

    With balance "torch" each rank uses what DistributedSampler gives it, and its node reads that. Otherwise the data
    set is divided into home regions of the ranks, and each node reads its own. Boxes and samples of unequal length have
    no homes.
    """

    def __init__(
        self,
        with_: Peers,
        source: SampleSource,
        order: IndexStream,
        exchange: str,
        balance: str | None,
        facts: Mapping[str, Any],
        nbytes: int,
        wanted: bool,
        replaced: ReadError | None,
    ) -> None:
        datasets = source.datasets
        anywhere = "boxes" if source.boxes else "samples of unequal length" if source.ragged else ""
        if anywhere and balance not in (None, "torch"):
            raise PlanError(
                f"{datasets[0]} has {anywhere}, which are not divided among ranks by where they lie: "
                f"balance={balance!r}; leave it away, and each node holds what its ranks take"
            )
        self._name = " + ".join(map(str, datasets[:2])) + (" + ..." if len(datasets) > 2 else "")
        self.peers, self._seconds = with_, PATIENCE if wanted else PATIENCE_UNASKED
        rank, ranks = order.sampler.rank, order.sampler.num_replicas
        own = {"part": rank}
        alone = int(rank == with_.rank and ranks == with_.ranks)  # in having this part
        data = [f"{layout.name} in {layout.paths[0]}, {layout.digest[:16]}" for layout in layouts_of_source(source)[:8]]
        data += [own.digest[:16] for one in datasets for own in leaves(one.extents)[:8] if own is not None][:8]
        same = {"data": data, "length": sum(map(len, datasets)), **facts, "exchange": exchange, "balance": balance}
        least = {"alone": alone, "nbytes": nbytes}
        self.replaced = replaced
        from solar.io.channels.meeting import TROUBLE
        from solar.planning.sharing import Sharing

        same[TROUBLE] = None if self.replaced is None else str(self.replaced)
        try:
            self._met = with_.meet(f"the first batch of {self._name}", same, own, least, self._seconds)
        except PlanError:
            self.check_files()  # this rank's own error says more
            raise
        self.check_files()
        self.nbytes = self._met.least["nbytes"]  # of a node's buffer: nodes may differ a little in what 25% is
        self.mates = sorted({mate["part"] for mate in self._met.mates.values()})
        at_home_ = balance if balance is not None else "torch" if self.nodes == 1 or anywhere else "equal"
        if at_home_ != "torch" and not self._met.least["alone"]:
            if balance is not None:
                raise ValueError(
                    f"balance={balance!r}: each of the {with_.ranks} processes must have the part of the samples that "
                    "is named after its rank; give the sampler no rank of its own"
                )
            at_home_ = "torch"
        self.balance = at_home_
        self.exchange = self._carriers(exchange)
        node_of, here = np.array(self._met.node_of, np.int32), self._met.node_of[with_.rank]
        used = partial(used_by, source, order.sampler.dataset)
        self._sharing = Sharing(
            pieces_of(source), node_of, ranks, rank, self.mates, here, self.balance, self.exchange, used
        )
        samples = len(order.sampler.dataset)
        self.shared_plans = SharedPlans(with_, self._met, self._name, self._seconds, source, samples)

    def _carriers(self, exchange: str) -> str:
        """Returns how samples get to other nodes: "mpi", "torch", "read" (each reads its own), or "" if none do."""
        if self.nodes == 1 or self.balance != "equal":
            return ""
        return self.peers.by if exchange == "auto" else exchange

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return max(self._met.node_of) + 1

    @property
    def names(self) -> list[str]:
        """The names of the processes of this node."""
        return [f"rank {rank} of {self.peers.ranks}" for rank in self._met.mates]

    @property
    def place(self) -> int:
        """The place of this process among those of its node."""
        return list(self._met.mates).index(self.peers.rank)

    # --- meetings ----

    def needs(self, facts: Mapping[str, Any], own: Needs) -> list[Needs]:
        """Begins a run on all ranks. Returns what the batches of each process of this node take."""
        mine = {"needs": list(own), "door": secrets.token_hex(16)}
        self._met = self.peers.meet(f"a new run of the buffer for {self._name}", facts, mine, {}, self._seconds)
        self.shared_plans.run_begins()
        return [Needs(*mate["needs"]) for mate in self._met.mates.values()]

    def least(self, own: Mapping[str, int]) -> dict[str, int]:
        """Returns the smallest value that any rank has, of each number."""
        return self.peers.meet(f"a trial of {self._name}", {}, {}, own, self._seconds).least

    def check_files(self, running: Run | None = None) -> None:
        """Raises an error if a file was replaced, on all ranks that are in a run with this one."""
        error, self.replaced = self.replaced, None
        if error is not None and running is not None:
            running.fail(error)
        if error is not None:
            try:
                raise error
            finally:
                del error  # or it and this frame, which its traceback keeps, would keep each other alive

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Runs the block on each rank before a run begins. An error on one rank is raised on all."""
        from solar.io.channels.meeting import TROUBLE

        what = f"the plan of a new run for {self._name}"
        try:
            self.check_files()
            yield
        except Exception as error:
            self.shared_plans.run_ends()  # first: others may wait for what this rank was to make
            if self.shared_plans.is_of_others(error):  # whose own says more than this one
                self.peers.meet(what, {TROUBLE: None}, {}, {}, self._seconds)
            with suppress(PlanError):  # this rank's own error says more
                self.peers.meet(what, {TROUBLE: str(error)}, {}, {}, self._seconds)
            raise
        self.peers.meet(what, {TROUBLE: None}, {}, {}, self._seconds)

    def running(self, rows: Sequence[Rows], parts: Sequence[RunPart], staged: int, scratch: int, *, lends: int) -> Run:
        """Returns the run that executes the plan of this node."""
        from solar.io.channels import node_memory
        from solar.planning.budget import SENDING

        sends, memory = self.exchange in SENDING, None
        window = max(1, staged) if lends else max(1, staged - staged // 2)  # batches that are exchanged, or wait
        made = staged if not sends else 1 if lends else max(1, staged // 2)
        if len(self.names) > 1:
            door = next(iter(self._met.mates.values()))["door"]
            memory = node_memory.join(door, self.place, self.names, shared_nbytes(parts), check=self.peers.check)
        with_taker = staged - 1 + lends if sends and lends else lends  # all but the one that is made
        running = Running(rows, parts, made, scratch, memory, with_taker, sends)
        shared = sum(part.pages * part.page for part in parts)
        running.nbytes -= shared - shared // len(self.names)  # each rank counts its part
        if not sends:
            return running
        from solar.distributed.exchange import Exchange, mail  # only where samples travel between nodes

        mailed = mail(self.exchange, self.peers.check)
        return Exchange(running, mailed, window, ended=self.peers.ended)

    # --- who takes what ----

    def _facts(self, uses: SampleUses) -> dict[str, Any]:
        """Returns the facts about a pass that must be the same on all ranks."""
        checksum = 0
        for column in (uses.which, uses.rows, uses.starts):
            checksum = zlib.crc32(b"-" if column is None else np.ascontiguousarray(column).data, checksum)
        return {
            "steps": len(uses.starts) - 1, "samples": len(uses.rows),
            "checksum of the order (epoch, seed, shuffle, Subset)": checksum,
        }  # fmt: skip

    def divided(
        self, source: SampleSource, make: Callable[[], Pass], epoch: int, facts: Mapping[str, Any] | None
    ) -> DividedPass:
        """Returns this rank's part of a pass of all ranks. `facts` are what the pass follows from, if that is known."""
        shares = self.shared_plans.shares(facts)

        def made() -> tuple[SampleUses, Array | None, Who | None, dict[str, Any]]:
            samples, starts = make()
            uses = located(source, (samples, starts), epoch)
            who = self._sharing.who(uses) if shares and self.balance != "torch" else None
            return uses, None if uses.rows is samples else samples, who, self._facts(uses)

        uses, samples, who, same = self.shared_plans.pass_of(facts, made)
        segment, own = self._sharing.divided(uses, who)
        segment = segment._replace(facts=facts if shares else None)
        return DividedPass(segment, ((uses.rows if samples is None else samples)[own.uses], own.starts), same)

    def pieces(self) -> list[Piece]:
        """Returns the pieces that this node plans: its region of each dataset."""
        return self._sharing.planned()
