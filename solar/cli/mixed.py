"""order="mixed" on a command line: its options, how random it is with several windows, and what each would read."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from solar.cli import jobs, planned, sample_arguments
from solar.cli.compare import PlannedData, outcome_by_order
from solar.errors import PlanError
from solar.io.system import quantities
from solar.planning.job import Job, NodePlan
from solar.planning.spread import REGIONS, Spread, spread_of
from solar.samplers.mixed_blocks import BlockMix, by_mixed_blocks
from solar.samplers.orders import STRETCH, EpochOrder
from solar.samples.placement import Placement, block_and_window
from solar.values import Outcome

USUAL_BLOCK = "1MiB"  # if nobody says
OF_MEMORY = (0.125, 0.25, 0.5, 0.7, 1.0, 2.0)  # windows that are tried: shares of what memory has room for
OF_DATA = (0.01, 0.02, 0.05, 0.1, 0.2)  # without memory
SPREAD = 0.5  # share of the exact shuffle's spread that is kept, if nobody says
OF_ORDER = 'order="mixed": '  # how messages of the sampler begin
WORTH_MIXING = 0.9  # of the exact shuffle's time, above which nothing is gained


class WindowOrSteps(argparse.Action):
    """Tells the steps of a field (DATASET=STEPS) from the window of an order, which is a size."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        try:
            if "=" in values or not (values[:1] in tuple("0123456789.") or values == "auto"):  # whose refusal says why
                namespace.window = [*namespace.window, sample_arguments.parse_window(values)]
            else:
                namespace.order_window = parse_amount(values)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None


def parse_amount(text: str) -> int | float | str:
    """Returns a number of samples (4096), a share of the data (5%, 0.05), or bytes (32MiB), as the order takes it."""
    plain = text.replace("_", "").replace(",", "").strip()
    try:
        if plain.endswith("%"):
            return float(plain[:-1]) / 100
        return float(plain) if "." in plain and not plain[-1].isalpha() else int(plain)
    except ValueError:
        return text


def add_arguments(parser: argparse.ArgumentParser, *, advising: bool = False) -> None:
    """Adds --order, --block and, to advise, --spread. --window is added with the kinds of samples."""
    add = parser.add_argument_group('the order "mixed" of solar.PlanSampler, with its --window').add_argument
    add("--order", choices=["mixed"], help="blocks of neighbours are shuffled, then the samples of each window")
    add(
        "--block",
        metavar="SIZE",
        type=parse_amount,
        help=f"samples, bytes, or a share of the data: 5%% ({USUAL_BLOCK})",
    )
    if advising:
        share = f"of the exact shuffle's, that the window which is advised is to keep ({SPREAD})"
        add("--spread", metavar="SHARE", type=jobs.share, default=SPREAD, help=share)
    parser.set_defaults(order_window=None)


def check_order_options(arguments: argparse.Namespace, *others: str) -> None:
    """Raises PlanError for a size without --order, or with another order."""
    if arguments.order is None:
        for name, given in (("--block", arguments.block), ("--window", arguments.order_window)):
            if given is not None:
                raise PlanError(f"{name} {given} is of a mixed order: give --order mixed, too")
        return
    if other := next((name for name in others if getattr(arguments, name)), ""):
        raise PlanError(f"--order mixed and --{other} are two orders: leave one of them out")


def sampler_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of PlanSampler for the order."""
    check_order_options(arguments)
    if arguments.order is None:
        return {}
    if arguments.order_window is None:
        raise PlanError(
            "--order mixed: give --window, too, as samples, as bytes (32MiB), or as a share of the data (5%); "
            "`solar plan FILE --order mixed` says what windows would read"
        )
    return {"order": "mixed", "block": _block(arguments), "window": arguments.order_window}


def _block(arguments: argparse.Namespace) -> int | float | str:
    return USUAL_BLOCK if arguments.block is None else arguments.block


# --- the order of `solar plan` ----


def order_maker(arguments: argparse.Namespace, cases: Sequence[PlannedData]) -> Any:
    """Returns what makes the order with a window for the samples of `solar plan`."""
    study = arguments.seed if arguments.study is not None else None
    if study is not None and arguments.study != STRETCH:
        raise PlanError(
            "--study SHARE and --order mixed: the windows are the stretches of the study: give --study alone"
        )
    if arguments.file is None:
        one = cases[0]
        lies = Placement(None, one.units.per_unit, float(one.units.samples * one.units.sample_nbytes))

        def made(window: int | float | str) -> EpochOrder:
            try:
                block, within = block_and_window(_block(arguments), window, lies, one.samples)
            except ValueError as error:
                raise PlanError(f"--order mixed: {str(error).removeprefix(OF_ORDER)}") from None
            return by_mixed_blocks(BlockMix(one.samples, block, within, lies.edges, None, study))

        return made
    from solar import H5Dataset, PlanSampler  # only here: torch takes seconds to import

    names = list(dict.fromkeys(one.name for one in cases)) if not sample_arguments.unequal(arguments) else []
    fields, samples = sample_arguments.fields(arguments, names)
    data = H5Dataset(arguments.file, fields, samples=samples, where=arguments.where)

    def of_file(window: int | float | str) -> EpochOrder:
        try:
            mixed: dict[str, Any] = {"order": "mixed", "block": _block(arguments), "window": window, "study": study}
            by = PlanSampler(data, 1, 0, **mixed).by
        except ValueError as error:
            raise PlanError(f"--order mixed: {str(error).removeprefix(OF_ORDER)}") from None
        assert by is not None
        return by

    return of_file


# --- windows beside each other ----


@dataclass(frozen=True)
class TriedWindow:
    """An order that is compared with the exact shuffle: what an epoch of it costs, and how random it is."""

    window: int | None  # samples; None: the exact shuffle
    outcome: Outcome
    spread: Spread


@dataclass(frozen=True)
class WindowTable:
    """The exact shuffle, and mixed orders with several windows."""

    block: int
    chunk: int  # samples of a chunk, where all are alike; 1: a block may end anywhere, or chunks differ
    fits: int  # the largest window that memory has room for; 0: without memory
    exact: TriedWindow
    tried: list[TriedWindow]
    keep: float  # share of the exact shuffle's spread

    @property
    def advised(self) -> TriedWindow | None:
        """The cheapest order that is random enough; None if none is."""
        wanted = self.keep * self.exact.spread.regions
        keeping = [one for one in self.tried if one.spread.regions >= wanted]
        return min(keeping, key=lambda one: (one.outcome.seconds, -(one.window or 0)), default=None)

    @property
    def gains(self) -> bool:
        """Whether any of them is faster than the exact shuffle."""
        best = min(one.outcome.seconds for one in self.tried)
        return best < WORTH_MIXING * self.exact.outcome.seconds


def compare_windows(
    cases: Sequence[PlannedData], job: Job, make: Any, asked: int | float | str | None, keep: float
) -> WindowTable:
    """Returns the cost of windows of several sizes, including the one that was asked for."""
    (exact, plan), one = _try_order(cases, job, None), cases[0]
    whole = sum(case.units.samples * case.units.sample_nbytes for case in cases)
    room = 0 if plan.budget is None else plan.budget.parts * job.nodes
    fits = min(one.samples, int(room * one.samples / max(1, whole)))
    wanted = [share * fits for share in OF_MEMORY] if fits else [share * one.samples for share in OF_DATA]
    mixes = {} if asked is None else {(by := make(asked)).facts["window"]: by}
    for window in wanted:
        try:
            by = make(max(1, min(one.samples, round(window))))
        except PlanError:  # smaller than a block
            continue
        mixes.setdefault(by.facts["window"], by)
    if not mixes:
        by = make(one.samples)
        mixes = {by.facts["window"]: by}
    tried = [_try_order(cases, job, mixes[window])[0] for window in sorted(mixes)]
    sizes = next(iter(mixes.values())).facts
    return WindowTable(sizes["block"], sizes.get("chunk", 1), fits, exact, tried, keep)


def _try_order(cases: Sequence[PlannedData], job: Job, by: EpochOrder | None) -> tuple[TriedWindow, NodePlan]:
    """Returns the cost of an order, how random it is, and the plan of the first node; None: an exact shuffle."""
    outcome, plan = outcome_by_order(cases, job, by)
    order = cases[0].drawn_otherwise(by=by).order
    step = job.batch * job.world.ranks
    first, second = (order.of(epoch)[: order.samples] for epoch in range(2))
    return TriedWindow(None if by is None else by.facts["window"], outcome, spread_of(first, second, step)), plan


def windows_as_json(found: WindowTable) -> dict[str, Any]:
    """Returns what the answer of --json says about windows."""
    rows = [
        {"window": one.window, **asdict(one.outcome), **one.spread._asdict()} for one in (found.exact, *found.tried)
    ]
    return {
        "block": found.block, "chunk": found.chunk, "largest_window": found.fits, "windows": rows, "keep": found.keep,
        "advised": found.advised and found.advised.window, "gains": found.gains,
    }  # fmt: skip


def windows_as_text(cases: Sequence[PlannedData], found: WindowTable, asked: int | None) -> Iterator[str]:
    """Yields the table of windows, and which one to choose."""
    one, exact = cases[0], found.exact
    each = sum(case.units.samples * case.units.sample_nbytes for case in cases) / one.samples
    chunks = f", {quantities.count(found.block // found.chunk, 'chunk')} of {found.chunk:,}" if found.chunk > 1 else ""
    yield f"Blocks of {quantities.count(found.block, 'sample')} ({quantities.size(found.block * each)}{chunks})."
    step = one.batch * one.world.ranks
    head = ("window", "time", "scans", "requests", f"parts of {REGIONS}", "neighbours", "together again")
    rows = [_row(found.exact, "exact shuffle")]
    for tried in found.tried:
        mark = " *" if tried.window == asked else ""
        rows.append(_row(tried, f"{tried.window:,} ({quantities.size((tried.window or 0) * each)}){mark}"))
    yield from planned.table([head, *rows])
    yield f"parts of {REGIONS}: of so many parts of the data set, those that a step's {step:,} samples come from."
    yield "neighbours: positions between samples that lie side by side in the file, the median."
    yield "together again: of those in a step with a sample, the share that is with it in the next epoch, too."
    if found.fits and asked is not None and asked > found.fits:
        yield (
            f"--window {asked} takes {quantities.size(asked * each)}, and memory has room for {found.fits:,} samples: "
            f"parts of a window are read again. The largest window that fits is --window {found.fits}."
        )
    yield advice(found, exact)


def _row(one: TriedWindow, name: str) -> tuple[str, ...]:
    return (
        name,
        quantities.duration(one.outcome.seconds),
        quantities.rounded(one.outcome.scans),
        f"{one.outcome.requests:,.0f}",
        quantities.rounded(one.spread.regions),
        f"{one.spread.apart:,.0f}",
        f"{one.spread.again:.1%}",
    )


def advice(found: WindowTable, exact: TriedWindow) -> str:
    """Returns which window to choose, or why none."""
    if not found.gains:
        return (
            "Nothing is gained by a mixed order here: the exact shuffle reads about as fast. Leave out --order, and "
            "order= of the PlanSampler."
        )
    best = found.advised
    if best is None:
        most = max(found.tried, key=lambda one: one.spread.regions)
        return (
            f"No window here keeps {found.keep:.0%} of the exact shuffle's spread; the largest share is "
            f"{most.spread.regions / exact.spread.regions:.0%}, with --window {most.window}. Smaller blocks keep more."
        )
    times = exact.outcome.seconds / best.outcome.seconds if best.outcome.seconds else 0.0
    faster = f", {quantities.rounded(times)} times as fast as the exact shuffle" if times > 1 else ""
    return (
        f"The cheapest window that keeps {found.keep:.0%} of the exact shuffle's spread is --window {best.window}: "
        f'PlanSampler(data, order="mixed", block={found.block}, window={best.window}) takes '
        f"{quantities.duration(best.outcome.seconds)} an epoch{faster}."
    )
