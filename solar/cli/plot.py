"""Draws a plan as an HTML page, or as a picture by matplotlib."""

from __future__ import annotations

import html
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from solar.cli import words
from solar.cli.compare import ROW_NAMES, Answer, PlannedData
from solar.cli.progress_bar import ended_in_order
from solar.errors import PlanError
from solar.io.system import atomic_file, quantities
from solar.planning import policies
from solar.planning.plan import Plan
from solar.samples.row_windows import Listing
from solar.values import Script

EPOCHS_TRACED = 3  # from the first batch on, at most
POINTS = 3000  # of the head's way

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Trace:
    """The course of a plan: places as shares of the data set, and the bytes in memory at each step."""

    read_at: Floats
    place: Floats
    step_at: Floats
    held: Floats


def trace(plan: Plan) -> Trace | None:
    """Returns the course of a plan in its first epochs; None if no head moves."""
    if plan.policy.direct:
        return None
    epochs = plan.epochs[:EPOCHS_TRACED]
    scripts = [plan.script(epoch) for epoch in epochs]
    if not any(len(one.loads) for one in scripts):
        return None
    units = plan.region.units
    steps = len(scripts[0].ends) - 1
    loads = [policies.unit_of(units, one.loads) for one in scripts]
    comes = [_per_step(unit_weights(plan, unit), one.ends) for one, unit in zip(scripts, loads, strict=True)]
    uses = [policies.unit_of(units, one.rows[:]) for one in scripts]
    goes = [
        _per_step(unit_weights(plan, unit) * _last(one), one.starts) for one, unit in zip(scripts, uses, strict=True)
    ]
    # What is issued at a step comes once the step before has let go of its own.
    at_first = unit_weights(plan, policies.unit_of(units, scripts[0].start)).sum()
    held = at_first + np.concatenate(([0.0], np.cumsum(np.concatenate(comes) - np.concatenate(goes))[:-1]))
    read_at = np.concatenate([at + _issued_at(one.ends) / steps for at, one in enumerate(scripts)])
    shown = np.linspace(0, len(read_at) - 1, min(POINTS, len(read_at))).astype(int)
    return Trace(read_at[shown], np.concatenate(loads)[shown] / units.units, np.arange(len(held)) / steps, held)


def _last(script: Script) -> NDArray[np.uint8]:
    """Returns whether each use is the last one of its item."""
    if not isinstance(script.rows, Listing):
        return script.last
    return np.unpackbits(script.last, count=len(script.rows), bitorder="little")


def unit_weights(plan: Plan, unit: Ints) -> Floats:
    """Returns the memory that each item takes: a sample of the unit, or all of it."""
    units = plan.region.units
    if plan.kept == "rows":
        return np.full(len(unit), float(units.sample_nbytes))
    return np.full(len(unit), float(units.paged)) if isinstance(units.paged, int) else units.paged[unit].astype(float)


def _per_step(weights: Floats, ends: Ints) -> Floats:
    """Returns the sum of each step's weights."""
    return np.diff(np.concatenate(([0.0], np.cumsum(weights)))[ends])


def _issued_at(ends: Ints) -> Floats:
    """Returns the step at which each load is issued."""
    return np.repeat(np.arange(1.0, len(ends)), np.diff(ends))


PICTURES = (".png", ".svg", ".pdf")  # what matplotlib is asked for
LINE_COLOURS = {"torch": "#8c8c8c", "lru": "#b08d57", "pinned": "#c2703d", "solar_paper": "#7a6fb0", "solar": "#1f77b4"}
LINE_COLOURS |= {"one_by_one": "#8c8c8c", "alone": "#c2703d", "page_cache": "#b08d57"}
WIDTH, HEIGHT = 560, 300  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 40, 44  # around its axes
MOST_POINTS = 2000  # of a line; more cannot be told apart
FEW, WIDE = 500, 4  # dots that are drawn so wide: small ones would hardly be seen

Say = Callable[[float], str]


@dataclass(frozen=True, eq=False)
class Curve:
    """A panel with the course of a value over the epochs, from 0 to at least `level`, a limit."""

    title: str
    x: Floats
    y: Floats
    say: Say
    level: float
    unit: float = 1.0  # in which the marks of the axis are round
    dots: bool = False


@dataclass(frozen=True)
class Bars:
    """A panel with a bar for each policy."""

    title: str
    values: dict[str, float]
    say: Say


Panel = Curve | Bars


def check_picture(path: str) -> None:
    """Raises PlanError unless such a picture can be drawn here; called before the work begins."""
    kind = Path(path).suffix.lower()
    if kind not in (".html", *PICTURES):
        raise PlanError(f"--plot {path}: a picture is .html, or with matplotlib {', '.join(PICTURES)}")
    if not (folder := Path(os.path.realpath(path)).parent).is_dir():
        raise PlanError(f"--plot {path}: there is no folder {folder}")
    if kind != ".html" and find_spec("matplotlib") is None:
        raise PlanError(f"--plot {path}: {kind} needs matplotlib, which is not installed; .html needs nothing")


def draw_panels(path: str, said: Sequence[str], shown: list[Panel]) -> None:
    """Draws the panels into a file, below lines that say what was asked, and for what storage it is modelled."""
    kind = Path(path).suffix.lower()
    try:
        with ended_in_order(), atomic_file.write_file(Path(path), mode=0o666) as file:
            if kind == ".html":
                file.write(page_of_panels(said, shown).encode())
            else:
                _by_matplotlib(file, kind, said, shown)
    except OSError as error:
        raise PlanError(f"--plot {path}: cannot be written: {error.strerror}") from error


def panels(cases: Sequence[PlannedData], answered: Answer) -> tuple[list[Panel], str]:
    """Returns the panels (the cost of all fields together, our plan of the largest), and which field that is."""
    outcomes = answered.outcomes.items()
    shown: list[Panel] = [
        Bars("time per epoch", {name: one.seconds for name, one in outcomes}, quantities.duration),
        Bars("requests per epoch", {name: one.requests for name, one in outcomes}, quantities.short),
    ]
    at, case = max(enumerate(cases), key=lambda pair: pair[1].units.total_nbytes)
    window = answered.plan.windows[0] if answered.plan is not None and answered.plan.windows else None
    found = None if window is None else trace(window.plans[at])
    if window is None or found is None:
        return shown, ""
    room = window.plans[at].terms.room
    share, unit = "{:.0%}".format, 1024.0 ** int(math.log2(max(room, 1)) / 10)
    shown.append(Curve("solar: place of what is read", found.read_at, found.place, share, 1.0, dots=True))
    shown.append(Curve("solar: in memory on a node", found.step_at, found.held, quantities.size, room, unit))
    if len(cases) == 1:
        return shown, ""
    part = case.units.total_nbytes / max(1, sum(one.units.total_nbytes for one in cases))
    return shown, f"Where solar reads, and what is in memory: of {words.printable(case.name)}, {part:.0%} of the bytes."


# --- HTML, by ourselves ----

STYLE = """\
body { font: 14px system-ui, sans-serif; margin: 24px; background: #fff; color: #222 }
h1 { font-size: 17px; font-weight: 600 } p { margin: 4px 0 }
svg { max-width: 100%; height: auto } text { font-size: 12px; fill: #444 } .title { font-size: 14px; font-weight: 600 }
.axis { stroke: #999; fill: none } .grid { stroke: #ddd } .level { stroke: #c33; stroke-dasharray: 5 4 }
@media (prefers-color-scheme: dark) {
  body { background: #181a1d; color: #ddd } text { fill: #bbb } .grid { stroke: #333 } .axis { stroke: #777 }
}
"""


def page_of_panels(said: Sequence[str], shown: list[Panel]) -> str:
    """Returns the whole page."""
    rows = -(-len(shown) // 2)
    size = f"0 0 {2 * WIDTH} {rows * HEIGHT}"
    parts = [
        f'<g transform="translate({place % 2 * WIDTH},{place // 2 * HEIGHT})">{_svg(panel)}</g>'
        for place, panel in enumerate(shown)
    ]
    head = f'<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"><title>solar plan</title>\n<style>\n{STYLE}</style>'
    svg = f'<svg viewBox="{size}" width="{2 * WIDTH}" role="img" xmlns="http://www.w3.org/2000/svg">'
    title, *rest = map(html.escape, said)
    lines = [f"<h1>solar plan: {title}</h1>", *(f"<p>{line}</p>" for line in rest)]
    return "\n".join((head, *lines, svg, *parts, "</svg></html>\n"))


def _svg(panel: Panel) -> str:
    heading = f'<text class="title" x="{LEFT}" y="22">{html.escape(panel.title)}</text>'
    return heading + "".join(_bars(panel) if isinstance(panel, Bars) else _curve(panel))


def _bars(panel: Bars) -> Iterator[str]:
    left, most = LEFT + 64, max([*panel.values.values(), 1e-300])
    step = (HEIGHT - TOP - 20) / len(panel.values)
    for row, (name, value) in enumerate(panel.values.items()):
        y, length = TOP + row * step, (WIDTH - left - 110) * value / most
        middle = y + 0.4 * step + 4
        yield f'<text x="{left - 8}" y="{middle:.1f}" text-anchor="end">{html.escape(ROW_NAMES[name])}</text>'
        size = f'width="{length:.1f}" height="{0.8 * step:.1f}"'
        yield f'<rect x="{left}" y="{y:.1f}" {size} fill="{LINE_COLOURS[name]}"/>'
        yield f'<text x="{left + length + 6:.1f}" y="{middle:.1f}">{html.escape(panel.say(value))}</text>'


def _curve(panel: Curve) -> Iterator[str]:
    most_x, most_y = _range(panel)
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + across * x / most_x, TOP + down * (1 - y / most_y)

    for value in _marks(panel):
        y = at(0, value)[1]
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{LEFT + across}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{html.escape(panel.say(value))}</text>'
    for value in ticks(most_x):
        x = at(value, 0)[0]
        yield f'<text x="{x:.1f}" y="{TOP + down + 18}" text-anchor="middle">{value:,.10g}</text>'
    yield f'<text x="{LEFT + across}" y="{HEIGHT - 8}" text-anchor="end">epochs</text>'
    yield f'<path class="axis" d="M{LEFT} {TOP}V{TOP + down}H{LEFT + across}"/>'
    if not panel.dots:
        yield f'<path class="level" d="M{LEFT} {at(0, panel.level)[1]:.1f}H{LEFT + across}"/>'
    xs, ys = thin_curve(panel)
    yield _points(
        [at(*point) for point in zip(xs.tolist(), ys.tolist(), strict=True)], LINE_COLOURS["solar"], panel.dots
    )


def _points(points: list[tuple[float, float]], colour: str, dots: bool) -> str:
    if dots:
        width = WIDE if len(points) <= FEW else 1.5
        marks = "".join(f"M{x - width / 2:.1f} {y:.1f}h{width:g}" for x, y in points)
        return f'<path d="{marks}" stroke="{colour}" stroke-width="{width:g}" fill="none"/>'
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{line}" stroke="{colour}" stroke-width="1.2" fill="none"/>'


def _range(panel: Curve) -> tuple[float, float]:
    return math.ceil(panel.x.max(initial=1)), 1.04 * max(float(panel.y.max(initial=0)), panel.level) or 1.0


def _marks(panel: Curve) -> list[float]:
    return [panel.unit * value for value in ticks(_range(panel)[1] / panel.unit)]


def thin_curve(panel: Curve) -> tuple[Floats, Floats]:
    """Returns a curve's points, or of very many the minimum and maximum of each stretch, so that no peak is hidden."""
    if panel.dots:
        once = np.unique(np.stack([panel.x, panel.y]), axis=1)  # the samples of a chunk lie in one place
        return once[0], once[1]
    if len(panel.y) <= MOST_POINTS:
        return panel.x, panel.y
    length = -(-len(panel.y) // (MOST_POINTS // 2))
    begins = np.arange(0, len(panel.y), length)
    both = np.stack([np.minimum.reduceat(panel.y, begins), np.maximum.reduceat(panel.y, begins)], axis=1)
    return np.repeat(panel.x[begins], 2), both.ravel()


def ticks(most: float) -> list[float]:
    """Round values from 0 to `most`, about five.

    >>> ticks(23)
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    step = 10.0 ** math.floor(math.log10(most / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if most / (factor * step) <= 5)
    return [step * place for place in range(int(most / step) + 1)]


# --- pictures, by matplotlib ----


def _by_matplotlib(file: BinaryIO, kind: str, said: Sequence[str], shown: list[Panel]) -> None:
    rows = -(-len(shown) // 2)
    figure = import_module("matplotlib.figure").Figure(figsize=(12, 3.4 * rows), layout="constrained")
    figure.suptitle("\n".join(said), fontsize=11)
    for axes, panel in zip(figure.subplots(rows, 2, squeeze=False).flat, shown, strict=False):
        axes.set_title(panel.title, fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        if isinstance(panel, Bars):
            names = [*panel.values]
            drawn = axes.barh(
                [ROW_NAMES[name] for name in names],
                [*panel.values.values()],
                color=[LINE_COLOURS[name] for name in names],
            )
            axes.bar_label(drawn, [panel.say(value) for value in panel.values.values()], padding=3, fontsize=9)
            axes.invert_yaxis()
            axes.set_xticks([])
            axes.margins(x=0.15)
            continue
        xs, ys = thin_curve(panel)
        dots = {"marker": ".", "linestyle": "none", "markersize": WIDE if len(xs) <= FEW else 1}
        axes.plot(xs, ys, color=LINE_COLOURS["solar"], **(dots if panel.dots else {"linewidth": 1}))
        if not panel.dots:
            axes.axhline(panel.level, color="#c33", linestyle="--", linewidth=1)
        axes.set_yticks(_marks(panel), [panel.say(value) for value in _marks(panel)])
        axes.set_xlim(0, _range(panel)[0])
        axes.set_xlabel("epochs")
    figure.savefig(file, format=kind[1:], dpi=120)
