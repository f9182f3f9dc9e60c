"""Several trainings over one data set on a node: each alone, or all with one memory and one sweep; and what gains."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from solar.cli import planned, quantities
from solar.cli.compare import Answer, Case, Travel, cached_lately, summed_up
from solar.errors import PlanError
from solar.io.machine import figures
from solar.orders.epoch_order import STRETCH
from solar.planner.budget import TooSmall
from solar.planner.job import Job, NodePlan
from solar.planner.job import planned as plan_of
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
    add("--jobs", metavar="K", type=number, help="how many, with the seeds SEED, SEED + 1, ...; --memory is of all")
    add("--common-order", action="store_true", help="all have the shuffle of SEED")
    add(
        "--study", metavar="SHARE", nargs="?", type=share, const=STRETCH,
        help=f"PlanSampler(seed=..., study=SEED): alike within stretches of this share of an epoch ({STRETCH})",
    )  # fmt: skip


def number(text: str) -> int:
    """A number of jobs."""
    found = quantities.count(text)
    if found > MOST_JOBS:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: at most {MOST_JOBS:,}")
    return found


def share(text: str) -> float:
    """A part of an epoch: 0.05, 5%."""
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share of an epoch: give one such as 0.05 or 5%")
    return found


def side_by_side(arguments: argparse.Namespace, cases: list[Case]) -> list[Case]:
    """The cases as questions about so many jobs; PlanError where these cannot be."""
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
    return [replace(case, jobs=arguments.jobs, common=arguments.common_order, study=study) for case in cases]


def answer(cases: Sequence[Case], job: Job) -> Answer:
    """What an epoch of all jobs costs: each alone with its part of the memory, over one page cache, and together."""
    jobs, begin = cases[0].jobs, time.perf_counter()
    alone = _alone(job, jobs)
    seconds = time.perf_counter() - begin
    mean = of_all(alone.outcome(alone.later), jobs)
    outcomes, decoded, scaled = {"alone": mean}, {"alone": jobs * _decoded(alone)}, False
    if not any(case.ours for case in cases):
        outcomes["page_cache"], scaled = _page_cache(cases)
        decoded["page_cache"] = sum(_each_use(case) for case in cases)
    outcomes["solar"], decoded["solar"], first = mean, decoded["alone"], alone
    whole = of_all(alone.outcome(range(1)), jobs)
    if job.beside and job.memory:  # without a buffer nothing is shared
        begin = time.perf_counter()
        first = plan_of(job)
        seconds, whole = time.perf_counter() - begin, first.outcome(range(1))
        outcomes["solar"], decoded["solar"] = first.outcome(first.later), _decoded(first)
    travel = Travel(-(-job.order.uses // job.batch), 0, 0, 0)
    return Answer(
        outcomes, {}, ("page_cache",) if scaled else (), whole, first, seconds / len(first.epochs), travel=travel,
        decoded=decoded,
    )  # fmt: skip


def _alone(job: Job, jobs: int) -> NodePlan:
    """The plan of one of so many with its part of the memory."""
    try:
        return plan_of(replace(job, beside=(), memory=job.memory // jobs))
    except TooSmall as error:
        least = jobs * error.least
        try:
            plan_of(job)
        except TooSmall as of_all_jobs:
            least = max(least, of_all_jobs.least)
        raise TooSmall(job.memory, least, jobs) from None


def of_all(outcome: Outcome, jobs: int) -> Outcome:
    """What so many of them cost."""
    return Outcome(**{part.name: jobs * getattr(outcome, part.name) for part in fields(Outcome)})


def _page_cache(cases: Sequence[Case]) -> tuple[Outcome, bool]:
    """What it costs to read sample by sample over one page cache, field by field; whether on a smaller copy."""
    found = [cached_lately(case, as_stored=True) for case in cases]
    summed = summed_up([one for one, _ in found])
    scan = sum(case.scan_seconds for case in cases)
    return replace(summed, scans=summed.seconds / scan), any(scale != 1 for _, scale in found)


def _each_use(case: Case) -> int:
    """The samples that are decoded where each use decodes the chunk that it is in."""
    return case.units.per_unit * sum(one.uses for one in case.orders) if case.units.encoded else 0


def _decoded(plan: NodePlan) -> float:
    """The samples that come out of chunks in one of the later epochs."""
    listed = [plan.epochs[epoch] for epoch in plan.later]
    every = (counts.decoded for epoch in listed for counts, of in zip(epoch, plan.units, strict=True) if of.encoded)
    return sum(every) / len(listed)


# --- what is said ----


def as_json(cases: Sequence[Case], answered: Answer) -> dict[str, Any]:
    """What the answer of --json has of jobs."""
    one = cases[0]
    each = {name: of_each(outcome, one.jobs) for name, outcome in answered.outcomes.items()}
    limits = {name: limit(outcome, one) for name, outcome in answered.outcomes.items()}
    stretch = None if one.study is None else one.study[1]
    order = "common" if one.common else "own" if one.study is None else "study"
    return {
        "jobs": one.jobs, "order": order, "stretch": stretch, "per_job": each, "decoded": dict(answered.decoded),
        "limit": limits,
    }  # fmt: skip


def of_each(outcome: Outcome, jobs: int) -> dict[str, float]:
    """One job's part of what all cost."""
    return {name: getattr(outcome, name) / jobs for name in ("requests", "bytes", "scans", "seconds")}


def as_text(
    cases: list[Case], memory: int, answered: Answer, source: str, compute: float, cached: str, refused: str
) -> Iterator[str]:
    """The lines for people."""
    one = cases[0]
    yield from planned.opening(cases, memory, answered, source, cached, refused)
    yield _orders_in_words(one)
    yield ""
    for head, part in ((f"an epoch of {figures.count(one.jobs, 'job')}", 1), ("of each job", one.jobs)):
        names = (head, "time", "scans", "requests", "read", *(("hits", "peak memory") if part == 1 else ()))
        rows = (_row(name, outcome, part, name in answered.estimated) for name, outcome in answered.outcomes.items())
        yield from planned.table([names, *rows])
        yield ""
    yield from gains(cases, answered)
    yield from planned.closing(cases, answered, source, compute, cached, JOB_ROWS)


def _row(name: str, outcome: Outcome, part: int, estimated: bool) -> tuple[str, ...]:
    sign = "~" if estimated else ""
    uses = outcome.reads + outcome.hits
    row = (
        JOB_ROWS[name],
        sign + figures.duration(outcome.seconds / part),
        figures.rounded(outcome.scans / part),
        f"{sign}{outcome.requests / part:,.0f}",
        sign + figures.size(outcome.bytes / part),
    )
    hits = f"{outcome.hits / uses:.1%}" if uses else ""
    return row if part > 1 else (*row, hits, figures.size(outcome.peak_bytes))


def _orders_in_words(one: Case) -> str:
    jobs = f"{figures.count(one.jobs, 'job')} side by side, step by step, "
    if one.common:
        return jobs + "all with one order"
    alike = "" if one.study is None else f"; all want the same within {100 * one.study[1]:g}% of an epoch"
    return f"{jobs}each with an order of its own{alike}"


def limit(outcome: Outcome, one: Case) -> str:
    """What takes the time: "decoding", "bytes" or "requests"; "" where nothing is read."""
    reading = one.storage.seconds(outcome.requests, outcome.bytes)
    if outcome.seconds > 2 * reading:
        return "decoding"
    passing = outcome.bytes / one.storage.bandwidth
    return ("bytes" if passing >= outcome.requests * one.storage.request_seconds else "requests") if reading else ""


def gains(cases: Sequence[Case], answered: Answer) -> Iterator[str]:
    """What sharing gains, and where it is little, why."""
    one, alone, ours = cases[0], answered.outcomes["alone"], answered.outcomes["solar"]
    if answered.decoded["alone"]:
        total, apart = round(answered.decoded["solar"]), round(answered.decoded["alone"])
        yield f"Decoded: {figures.count(total, 'sample')} for all jobs together, {apart:,} by each alone."
    if one.jobs == 1 or not ours.seconds or alone.seconds > LITTLE * ours.seconds or limit(ours, one) != "bytes":
        return
    f = min(1.0, sum(case.memory for case in cases) / max(1, sum(case.units.total_nbytes for case in cases)))
    by_itself = figures.rounded(one.jobs * (1 - f / one.jobs))
    yield f"Sharing gains little here: bytes decide, not requests, and memory holds {f:.0%} of them."
    if one.common or one.study is not None:
        return
    yield (
        f"With orders of their own {one.jobs} jobs read about {figures.rounded(one.jobs * (1 - f))} scans together and "
        f"{by_itself} alone; in a study's order (--study), or one for all (--common-order), {figures.rounded(1 - f)}."
    )
