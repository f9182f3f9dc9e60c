"""Compares ways to run several trainings over one data set on a node: each alone, or all with one memory."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from solar.cli import argument_types, planned
from solar.cli.compare import Answer, PlannedData, Travel, cached_lately, summed_up
from solar.errors import PlanError
from solar.io.system import quantities
from solar.planning.budget import BufferTooSmall
from solar.planning.job import Job, NodePlan
from solar.planning.job import plan_node as plan_of
from solar.samplers.orders import STRETCH
from solar.values import Outcome

MOST_JOBS = 1024
LITTLE = 2  # times as fast, up to which it is said why it is no more
JOB_ROWS = {
    "alone": "each alone, memory divided",
    "page_cache": "each alone, one page cache",
    "solar": "together, one memory",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("several trainings of one process each, on one node").add_argument
    add("--jobs", metavar="K", type=parse_jobs, help="how many, with the seeds SEED, SEED + 1, ...; --memory is of all")
    add("--common-order", action="store_true", help="all have the shuffle of SEED")
    add(
        "--study", metavar="SHARE", nargs="?", type=share, const=STRETCH,
        help=f"PlanSampler(seed=..., study=SEED): alike within stretches of this share of an epoch ({STRETCH})",
    )  # fmt: skip


def parse_jobs(text: str) -> int:
    """Returns a number of jobs."""
    found = argument_types.count_argument(text)
    if found > MOST_JOBS:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: at most {MOST_JOBS:,}")
    return found


def share(text: str) -> float:
    """Returns a share of an epoch: 0.05, 5%."""
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share of an epoch: give one such as 0.05 or 5%")
    return found


def side_by_side(arguments: argparse.Namespace, cases: list[PlannedData]) -> list[PlannedData]:
    """Returns the cases as questions about several jobs. Raises PlanError if they cannot be combined."""
    asked = {"--common-order": arguments.common_order, "--study": arguments.study is not None}
    given = [flag for flag, is_given in asked.items() if is_given]
    if arguments.jobs is None:
        if given:
            raise PlanError(f"{given[0]} is of several jobs: give --jobs K, too")
        return cases
    if len(given) == 2:
        raise PlanError("--common-order and --study are two orders: leave one of them out")
    if arguments.ranks > 1:
        raise PlanError("--jobs: each is a training of one process; leave out --ranks")
    if arguments.study is not None and (arguments.weights or arguments.mixture):
        other = "--weights" if arguments.weights else "--mixture"
        raise PlanError(f"--study is a shuffle, and {other} is another order: leave one of them out")
    study = None if arguments.study is None else (arguments.seed, arguments.study)
    return [case.drawn_otherwise(jobs=arguments.jobs, common=arguments.common_order, study=study) for case in cases]


def compare_jobs(cases: Sequence[PlannedData], job: Job) -> Answer:
    """Returns the cost of an epoch of all jobs: with the memory divided, with one page cache, and together."""
    jobs, begin = cases[0].drawn.jobs, time.perf_counter()
    alone = plan_alone(job, jobs)
    seconds = time.perf_counter() - begin
    mean = of_all(alone.outcome(alone.later), jobs)
    outcomes, decoded, scaled = {"alone": mean}, {"alone": jobs * decoded_samples(alone)}, False
    if not any(case.ours for case in cases):
        outcomes["page_cache"], scaled = _page_cache(cases)
        decoded["page_cache"] = sum(_each_use(case) for case in cases)
    outcomes["solar"], decoded["solar"], first = mean, decoded["alone"], alone
    whole = of_all(alone.outcome(range(1)), jobs)
    if job.beside and job.memory:  # without a buffer nothing is shared
        begin = time.perf_counter()
        first = plan_of(job)
        seconds, whole = time.perf_counter() - begin, first.outcome(range(1))
        outcomes["solar"], decoded["solar"] = first.outcome(first.later), decoded_samples(first)
    travel = Travel(-(-job.order.uses // job.batch), 0, 0, 0)
    return Answer(
        outcomes, {}, ("page_cache",) if scaled else (), whole, first, seconds / len(first.epochs), travel=travel,
        decoded=decoded,
    )  # fmt: skip


def plan_alone(job: Job, jobs: int) -> NodePlan:
    """Returns the plan of one of several jobs with its part of the memory."""
    try:
        return plan_of(replace(job, beside=(), memory=job.memory // jobs))
    except BufferTooSmall as error:
        least = jobs * error.least
        try:
            plan_of(job)
        except BufferTooSmall as of_all_jobs:
            least = max(least, of_all_jobs.least)
        raise BufferTooSmall(job.memory, least, jobs) from None


def of_all(outcome: Outcome, jobs: int) -> Outcome:
    """Returns the cost of this many jobs."""
    return Outcome(**{part.name: jobs * getattr(outcome, part.name) for part in fields(Outcome)})


def _page_cache(cases: Sequence[PlannedData]) -> tuple[Outcome, bool]:
    """Returns the cost of reading sample by sample over one page cache, and whether a smaller copy stood for it."""
    found = [cached_lately(case, as_stored=True) for case in cases]
    summed = summed_up([one for one, _ in found])
    scan = sum(case.scan_seconds for case in cases)
    return replace(summed, scans=summed.seconds / scan), any(scale != 1 for _, scale in found)


def _each_use(case: PlannedData) -> int:
    """Returns how many samples are decoded if each use decodes its chunk."""
    return case.units.per_unit * sum(one.uses for one in case.orders) if case.units.encoded else 0


def decoded_samples(plan: NodePlan) -> float:
    """Returns how many samples are decoded in one of the later epochs."""
    listed = [plan.epochs[epoch] for epoch in plan.later]
    every = (counts.decoded for epoch in listed for counts, of in zip(epoch, plan.units, strict=True) if of.encoded)
    return sum(every) / len(listed)


# --- what is said ----


def as_json(cases: Sequence[PlannedData], answered: Answer) -> dict[str, Any]:
    """Returns what the answer of --json says about jobs."""
    one = cases[0]
    each = {name: of_each(outcome, one.drawn.jobs) for name, outcome in answered.outcomes.items()}
    limits = {name: limit(outcome, one) for name, outcome in answered.outcomes.items()}
    stretch = None if one.drawn.study is None else one.drawn.study[1]
    order = "common" if one.drawn.common else "own" if one.drawn.study is None else "study"
    return {
        "jobs": one.drawn.jobs, "order": order, "stretch": stretch, "per_job": each, "decoded": dict(answered.decoded),
        "limit": limits,
    }  # fmt: skip


def of_each(outcome: Outcome, jobs: int) -> dict[str, float]:
    """Returns one job's part of the cost of all."""
    return {name: getattr(outcome, name) / jobs for name in ("requests", "bytes", "scans", "seconds")}


def as_text(
    cases: list[PlannedData], memory: int, answered: Answer, source: str, compute: float, cached: str, refused: str
) -> Iterator[str]:
    """Yields the lines for people."""
    one = cases[0]
    yield from planned.opening(cases, memory, answered, source, cached, refused)
    yield _orders_in_words(one)
    yield ""
    for head, part in ((f"an epoch of {quantities.count(one.drawn.jobs, 'job')}", 1), ("of each job", one.drawn.jobs)):
        names = (head, "time", "scans", "requests", "read", *(("hits", "peak memory") if part == 1 else ()))
        rows = (job_row(name, outcome, part, name in answered.estimated) for name, outcome in answered.outcomes.items())
        yield from planned.table([names, *rows])
        yield ""
    yield from sharing_gains(cases, answered)
    yield from planned.closing(cases, answered, source, compute, cached, JOB_ROWS)


def job_row(name: str, outcome: Outcome, part: int, estimated: bool) -> tuple[str, ...]:
    sign = "~" if estimated else ""
    uses = outcome.reads + outcome.hits
    row = (
        JOB_ROWS[name],
        sign + quantities.duration(outcome.seconds / part),
        quantities.rounded(outcome.scans / part),
        f"{sign}{outcome.requests / part:,.0f}",
        sign + quantities.size(outcome.bytes / part),
    )
    hits = f"{outcome.hits / uses:.1%}" if uses else ""
    return row if part > 1 else (*row, hits, quantities.size(outcome.peak_bytes))


def _orders_in_words(one: PlannedData) -> str:
    jobs = f"{quantities.count(one.drawn.jobs, 'job')} side by side, step by step, "
    if one.drawn.common:
        return jobs + "all with one order"
    alike = "" if one.drawn.study is None else f"; all want the same within {100 * one.drawn.study[1]:g}% of an epoch"
    return f"{jobs}each with an order of its own{alike}"


def limit(outcome: Outcome, one: PlannedData) -> str:
    """Returns what takes the time: "decoding", "bytes" or "requests"; "" if nothing is read."""
    reading = one.storage.seconds(outcome.requests, outcome.bytes)
    if outcome.seconds > 2 * reading:
        return "decoding"
    passing = outcome.bytes / one.storage.bandwidth
    return ("bytes" if passing >= outcome.requests * one.storage.request_seconds else "requests") if reading else ""


def sharing_gains(cases: Sequence[PlannedData], answered: Answer) -> Iterator[str]:
    """Yields what sharing gains, and why if it is little."""
    one, alone, ours = cases[0], answered.outcomes["alone"], answered.outcomes["solar"]
    if answered.decoded["alone"]:
        total, apart = round(answered.decoded["solar"]), round(answered.decoded["alone"])
        yield f"Decoded: {quantities.count(total, 'sample')} for all jobs together, {apart:,} by each alone."
    if one.drawn.jobs == 1 or not ours.seconds or alone.seconds > LITTLE * ours.seconds or limit(ours, one) != "bytes":
        return
    f = min(1.0, sum(case.memory for case in cases) / max(1, sum(case.units.total_nbytes for case in cases)))
    by_itself = quantities.rounded(one.drawn.jobs * (1 - f / one.drawn.jobs))
    yield f"Sharing gains little here: bytes decide, not requests, and memory holds {f:.0%} of them."
    if one.drawn.common or one.drawn.study is not None:
        return
    yield (
        f"With orders of their own {one.drawn.jobs} jobs read about "
        f"{quantities.rounded(one.drawn.jobs * (1 - f))} scans together and {by_itself} alone; in a study's order "
        f"(--study), or one for all (--common-order), "
        f"{quantities.rounded(1 - f)}."
    )
