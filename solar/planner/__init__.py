"""plan() and simulate(): from the order of samples to what is read when, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

from solar.planner import costs, regions
from solar.planner.assign import Flow
from solar.planner.course import Plan as Plan
from solar.planner.course import plan as plan
from solar.planner.course import plan_rows as plan_rows
from solar.planner.order import ShuffledUses
from solar.planner.sweep import KeepPolicy, total
from solar.planner.units import Units
from solar.values import Outcome, Storage, World

ALL_NODES = 1 << 26  # uses times nodes up to which each node is counted, and not just the first


@dataclass(frozen=True)
class Simulated:
    """What ours costs, and how it goes about it."""

    outcome: Outcome
    way: KeepPolicy  # of the first node
    overflow_fraction: float  # of the uses: taken by another rank than the one at whose home they lie
    nodes: int  # that were counted; fewer than there are: the others were taken to be alike


def simulate(
    order: ShuffledUses,
    units: Units,
    world: World,
    *,
    batch: int,
    memory: int,
    storage: Storage,
    ahead: int = 0,
    drop_last: bool = False,
    exchange: bool = True,
) -> Simulated:
    """What an epoch costs with so much memory on each node, once it is under way, by the cheapest way there is.

    Reads are issued `ahead` steps before their use and held from then on. Without `exchange` between nodes a rank
    reads itself what it takes from another node's home, each by a request of its own.
    """
    flow = Flow(order, units, world, batch, drop_last, exchange)
    epochs, measured = costs.epochs_of(order)
    terms = flow.terms(memory, storage.gap, ahead, epochs if order.uses <= ALL_NODES else measured[:1])
    nodes = [node for node in regions.of_nodes(units, world) if node.items]
    way, found = costs.choose(nodes[0], flow.uses(nodes[0]), epochs, measured, terms, storage)
    counted = nodes if len(nodes) * order.uses <= ALL_NODES else nodes[:1]
    for node in counted[1:]:
        if order.uses <= costs.FORMULA_ITEMS:
            found += costs.choose(node, flow.uses(node), epochs, measured, terms, storage)[1]
        else:
            found += costs.as_first(node, way, flow.uses(node), epochs, measured, terms, storage)
    away, travels, _ = flow.overflow(measured[0])
    summed = costs.times(total(one.counts for one in found), len(nodes) / len(counted))
    summed = total([summed, costs.read_alone(0 if exchange else travels * len(measured), units)])
    uses = len(measured) * int(flow.starts[-1])
    outcome = costs.outcome(len(measured), summed, uses, units, storage)
    return Simulated(outcome, way, away / int(flow.starts[-1]), len(counted))
