"""WindowPlanner: plans what the jobs of a shared reader want of a window, and divides the memory for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from solar.io.system.cores import reading_threads
from solar.planning.budget import Budget
from solar.planning.pass_uses import PassUses
from solar.planning.planned_passes import PlannedPasses, passes_per_plan
from solar.planning.served import FOR_BATCHES, SEGMENTS, divided_for_steps, packable, ring_of, segment_steps
from solar.planning.sweep import RetentionPolicy
from solar.service.cluster import Cluster, SingleNode
from solar.service.shared_data import SharedData
from solar.service.window import Wants, Window, WindowShare, stretch
from solar.values import RunPart

WINDOW_SEGMENTS = 2 * SEGMENTS
WINDOW_USES = 1 << 25


class WindowPlanner:
    """Plans windows of one data set in its part of the memory, of which the ring is for steps on their way."""

    def __init__(self, opened: SharedData, memory: int, cluster: Cluster | SingleNode) -> None:
        self.opened, self.memory, self.cluster = opened, memory, cluster
        self.parts: list[RunPart] = []  # of the present Run; none if another has to begin
        self.used = 0  # bytes of the ring
        self._pieces = cluster.pieces(opened.pieces)
        self.budget = self._divide(self.ring)
        self._policies = list[RetentionPolicy]()
        # The samples of a step, bytes of the ring, and epochs that these are for; and how many quarters of the next
        # epoch were known then.
        self._policies_for = (0, 0, 0), 0

    @property
    def ring(self) -> int:
        """The most bytes that the ring may have."""
        return self.memory // FOR_BATCHES

    def _divide(self, ring: int) -> Budget:
        """Returns how memory is divided if this much of it is for steps."""
        nbytes, scratch = self.opened.sample_nbytes, self.opened.scratch
        return divided_for_steps(self.memory, ring, self._pieces, nbytes, scratch, reading_threads())

    def plan(self, here: list[WindowShare], every: Sequence[Wants], since: float) -> Window:
        """Returns the window for these members. `every` is what each node wants; the making began at `since`."""
        nbytes = self.opened.sample_nbytes
        longest, most = max(one.longest for one in every), sum(one.most for one in every)
        length, steps = segment_steps(longest), max(one.steps for one in every)
        steps = max(1, min(steps, WINDOW_SEGMENTS * length, WINDOW_USES // max(1, most)))
        segments = range(0, steps, length)
        of_nodes = self.cluster.uses(stretch(self.opened, here, at, min(at + length, steps)) for at in segments)
        sizes: list[int] = []  # of the largest step of each segment, as planning comes by

        def made(length: int, at: int) -> PassUses:
            end = min(at + length, steps)
            return self.cluster.divided(stretch(self.opened, here, at, end), of_nodes, at, end)

        def segment(at: int) -> PassUses:
            found = made(length, at)
            sizes.append(int(found.sizes.max(initial=0)))
            return found

        makers = [partial(segment, at) for at in segments]
        batch = sum(one.slots for one in every)
        if not self.used:
            self._pieces = self.cluster.pieces(self.opened.held(self.memory * self.cluster.ranks))
        makers[0]()
        self._make_room(batch * nbytes, sizes[0] * nbytes)
        pieces, kept = packable(self._pieces, self.budget.scratch), self.budget.parts
        # What is cheapest shows in epochs: of a sixteenth of one hardly anything comes again. Of as many jobs it stays.
        epochs, storages = range(0, steps, longest), self.opened.storages()
        # What lasts for a part of the next epoch may leave this one no room: of another part another way is cheaper.
        found, beyond = (batch, self.used, min(2, len(epochs))), max(0, min(4, round(4 * steps / longest) - 4))
        before, beyond_before = self._policies_for
        other = beyond != beyond_before and any(policy.lasting for policy in self._policies)
        if other or before != found:
            few = [partial(made, longest, at) for at in epochs][: passes_per_plan(most * longest, first=True)]
            none = [None] * len(pieces)
            self._policies = PlannedPasses(few, 0, pieces, kept, batch, storages, none, False).policies
            self._policies_for = found, beyond
        passes = PlannedPasses(makers, 0, pieces, kept, batch, storages, self._policies, False, -(-longest // length))
        assert len(sizes) >= len(makers), "planning goes through all of them"
        spare = self.used // max(1, max(sizes) * nbytes) - 2
        parts = [
            replace(one, ahead=max(0, min(one.ahead, spare)) if one.direct else one.ahead) for one in passes.parts()
        ]
        starts = zip(storages, (plan.start_counts for plan in passes.plans), strict=True)
        costs = time.monotonic() - since + sum(on.seconds(one.requests, one.bytes) for on, one in starts)
        return Window(here, length, passes, parts, costs)

    def _make_room(self, most: int, step: int) -> None:
        """Gives the ring the memory that steps need. It never shrinks.

        A larger ring means a new Run, which reads again what is held. So room for two steps is enough, unless samples
        are read straight into them. Jobs of one order that drift apart want more in each step.
        """
        if self.parts and self.used >= max(most, 2 * step) and not any(one.direct for one in self.parts):
            return
        if (wanted := ring_of(self.memory, most, step)) > self.used:
            self.used, self.budget = wanted, self._divide(wanted)
            self.parts = []
