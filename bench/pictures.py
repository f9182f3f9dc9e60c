"""The pictures of docs/: of plans, by the planner itself, and of rates that are recorded.

    python -m bench.pictures [FOLDER]        # docs/

SVG by ourselves, so that the committed files are small, and the same wherever they are made.
"""

from __future__ import annotations

import html
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench import buffer_tables, cluster_tables, gallery, orders_tables, records, shapes_tables, situations, tables
from bench.passing import DISK, SAMPLE, Ints, in_sweeps, one_by_one, stays
from bench.situations import Situation, times
from solar.cli import plot
from solar.cli.compare import POLICY_NAMES
from solar.planning import policies
from solar.planning.job import predicted
from solar.planning.spread import REGIONS, regions_of_steps
from solar.planning.torch_shuffles import ShuffledUses, distributed, sampler_order
from solar.planning.units import Units, uniform
from solar.samplers.mixed_blocks import BlockMix, by_mixed_blocks
from solar.values import World

ROOT = Path(__file__).parent.parent
ALONE = World(0, 1)
COLOURS = {"torch": "#6b7480", "pinned": "#b4591f", "solar_paper": "#7a5fb0", "solar": "#1668a8"}
SHARES = (0.02, 0.03, 0.05, 0.08, 0.12, 0.18, 0.25, 0.35, 0.5, 0.65, 0.8, 0.9, 1.02)
EPOCHS = 6  # of which all but the first are averaged
LEAST = 0.4  # scans; nothing at all is read where the data fit
LABELS = {  # of a curve: beside which of its points, and where
    "torch": (0.8, 0, -8, "middle"),
    "pinned": (0.65, -8, 16, "end"),
    "solar_paper": (0.8, 8, -2, "start"),
    "solar": (0.18, 8, -6, "start"),
}
# On a light ground of its own: a picture in a page does not know whether the page is dark.
STYLE = (
    "<style>text{font:12px system-ui,sans-serif;fill:#333}.t{font-size:14px;font-weight:600}"
    ".a{stroke:#888;fill:none}.g{stroke:#e2e2e2}</style>"
)
SAMPLES = 32_768  # of the data set whose windows are drawn
PLAYS = 9  # seconds that a moving picture takes
# Without a ground: it is light or dark with what is around it. A still one shows how it ends.
MOVING = (
    "<style>text{font:13px system-ui,sans-serif;fill:#333}.t{font-size:15px;font-weight:600}.a{stroke:#888;fill:none}"
    ".torch{stroke:#6b7480}.solar{stroke:#1668a8}.given{stroke:#b4591f}circle{fill:#b4591f}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.torch{stroke:#a9b3bf}.solar{stroke:#62b0f0}"
    ".given{stroke:#f0955c}circle{fill:#f0955c}}@media(prefers-reduced-motion:no-preference){"
    f".shown{{animation:shown {PLAYS}s linear both}}.head{{animation:head {PLAYS}s linear both}}}}"
    "@keyframes shown{from{width:40px}}</style>"
)


def scans(samples: int = 16384, batch: int = 64) -> dict[str, list[float]]:
    """For each policy how many times the duration of one sequential read an epoch takes, by share in memory."""
    of, units = distributed(samples), uniform(samples, SAMPLE)
    once = DISK.seconds(1, units.total_nbytes)
    found: dict[str, list[float]] = {name: [] for name in COLOURS}
    for share in SHARES:
        for name, seconds in _seconds(of, units, batch, int(share * units.total_nbytes)).items():
            found[name].append(seconds / once)
    return found


def _seconds(of: ShuffledUses, units: Units, batch: int, memory: int) -> dict[str, float]:
    known = (of, units, ALONE)
    return {
        "torch": policies.torch(*known, batch=batch, storage=DISK).seconds,
        "pinned": policies.pinned(*known, batch=batch, storage=DISK, memory=memory).seconds,
        "solar_paper": policies.solar_paper(*known, batch=batch, storage=DISK, memory=memory).seconds,
        "solar": predicted(of, units, DISK, batch=batch, memory=memory, epochs=EPOCHS).seconds,
    }


# --- drawings ----


def reads(samples: int = 512, batch: int = 8) -> str:
    """Two epochs, sample by sample and in sweeps: where in the file is read, step by step."""
    epochs, steps = 2, samples // batch
    order = np.concatenate([distributed(samples).of(epoch) for epoch in range(epochs)])
    swept = stays(samples, batch, 0.25, epochs)

    def panel(left: int, title: str, x: Ints, y: Ints, colour: str, waiting: Iterable[str] = ()) -> Iterator[str]:
        yield f'<g transform="translate({left},0)"><text class="t" x="54" y="22">{title}</text>'
        yield f'<path d="{"".join(waiting)}" stroke="{colour}" stroke-opacity=".16" fill="none"/>'
        marks = "".join(f"M{54 + 3 * a} {254 - b * 210 // samples}h2" for a, b in zip(x, y, strict=True))
        yield f'<path d="{marks}" stroke="{colour}" stroke-width="2" fill="none"/>'
        yield from _axes(54, 44, 384, 210, "place in the file", "steps of two epochs")
        yield f'<path class="a" stroke-dasharray="3 3" d="M{54 + 3 * steps} 44V254"/></g>'

    each = np.arange(len(order)) // batch
    lines = (
        f"M{54 + 3 * a} {254 - b * 210 // samples}H{54 + 3 * c}"
        for a, b, c in zip(swept.read, swept.sample, swept.used, strict=True)
        if c > a
    )
    left = panel(0, "PyTorch: each sample when its turn comes", each, order, COLOURS["torch"])
    right = panel(460, "solar: in sweeps, a quarter in memory", swept.read, swept.sample, COLOURS["solar"], lines)
    return _svg(920, 300, "Where in the file two epochs read", [*left, *right])


def moving(ours: bool, samples: int = 1024, batch: int = 16, epochs: int = 2) -> str:
    """What a disk does for us until two epochs are there, or for PyTorch in the same time.

    It moves, unless the browser is asked for still pictures; then it is what is seen at the end.
    """
    swept = in_sweeps(samples, batch, 0.25, epochs)
    found, name = (swept, "solar") if ours else (one_by_one(samples, batch, epochs), "torch")
    left, top, wide, high, span = 40, 40, 384, 180, float(swept.batches[-1])

    def x(seconds: float) -> float:
        return round(left + wide * seconds / span, 1)

    def at(place: int, form: str = "{},{}") -> str:
        return form.format(x(found.seconds[place]), round(top + high * (1 - found.sample[place] / samples), 1))

    begins, ends = (np.flatnonzero(np.diff(found.request, **of)) for of in ({"prepend": -1}, {"append": -1}))
    turns = [one for one in np.unique([*begins, *ends]) if found.seconds[one] <= span]
    moves = (f"{100 * found.seconds[one] / span:.2f}%{{{at(one, 'translate:{}px {}px')}}}" for one in turns)
    waiting = (f"M{at(one)}H{x(found.used[one])}" for one in range(0, len(found.sample), 4) if ours)
    given = found.batches[found.batches <= span]
    requests = int(found.request[turns[-1]]) + 1
    said = f"{requests} requests, {len(given)} of {epochs * samples // batch} batches"
    parts = [
        f"<style>@keyframes head{{{''.join(moves)}}}</style>",
        f'<text class="t" x="{left}" y="22">{"solar: in sweeps" if ours else "PyTorch: each in its turn"}</text>',
        *_axes(left, top, wide, high, "place in the file", f"{span:.2f} s of the same disk"),
        f'<clipPath id="{name}"><rect class="shown" width="{left + wide + 2}" height="{top + high + 20}"/></clipPath>',
        f'<g clip-path="url(#{name})" fill="none"><g class="{name}">',
        f'<path d="{"".join(waiting)}" stroke-opacity=".25"/>',
        f'<polyline points="{" ".join(map(at, turns))}" stroke-width="1.6"/></g>',
        f'<path class="given" stroke-width="2" d="{"".join(f"M{x(one)} {top + high + 6}v10" for one in given)}"/></g>',
        f'<circle class="head" r="5" style="{at(turns[-1], "translate:{}px {}px")}"/>',
        f'<text class="t" x="{left}" y="{top + high + 60}">{said}</text>',
    ]
    return _svg(440, top + high + 72, f"{said} in {span:.2f} s", parts, MOVING)


def lives(samples: int = 32, batch: int = 2) -> str:
    """One epoch of few samples: when each is read, how long it waits, when it is used."""
    found, steps = stays(samples, batch, 0.34, 1), samples // batch
    wide, high = 38, 11
    parts = [*_axes(70, 44, wide * steps, high * samples, "samples, as they lie in the file", "steps of the epoch")]
    title = f"{samples} samples, batches of {batch}, memory for about a third"
    for sample, read, used in sorted(zip(found.sample, found.read, found.used, strict=True)):
        y, a, b = 44 + high * (samples - 1 - sample) + high // 2, 70 + wide * read, 70 + wide * used + wide // 2
        parts.append(f'<path d="M{a} {y}H{b}" stroke="{COLOURS["solar"]}" stroke-opacity=".35" stroke-width="4"/>')
        parts.append(f'<path d="M{a} {y - 4}v8" stroke="{COLOURS["solar"]}" stroke-width="3"/>')
        parts.append(f'<circle cx="{b}" cy="{y}" r="4" fill="{COLOURS["pinned"]}"/>')
    key = 44 + high * samples + 52
    parts.append(f'<path d="M70 {key - 8}v8" stroke="{COLOURS["solar"]}" stroke-width="3"/>')
    parts.append(f'<path d="M170 {key - 4}h28" stroke="{COLOURS["solar"]}" stroke-opacity=".35" stroke-width="4"/>')
    parts.append(f'<circle cx="360" cy="{key - 4}" r="4" fill="{COLOURS["pinned"]}"/>')
    for x, text in ((78, "is read"), (204, "waits in memory"), (370, "is in a batch")):
        parts.append(f'<text x="{x}" y="{key}">{text}</text>')
    parts.append(f'<text class="t" x="70" y="24">{title}</text>')
    return _svg(70 + wide * steps + 24, key + 16, "When each sample is read and used", parts)


def memory() -> str:
    """Scans per epoch against the share of the data in memory, for each policy."""
    found = scans()
    wide, high, left, top, most = 560, 250, 64, 44, 40.0

    def at(share: float, value: float) -> str:
        up = math.log(value / LEAST) / math.log(most / LEAST)
        return f"{left + wide * min(share, 1):.1f},{top + high * (1 - up):.1f}"

    parts = [*_axes(left, top, wide, high, "", "share of the data that fits into memory")]
    for value in (0.5, 1, 2, 5, 10, 20):
        y = at(0, value).partition(",")[2]
        parts.append(f'<path class="g" d="M{left} {y}h{wide}"/><text x="{left - 8}" y="{y}" dy="4"')
        parts[-1] += f' text-anchor="end">{value}</text>'
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = left + wide * share
        parts.append(f'<text x="{x}" y="{top + high + 16}" text-anchor="middle">{share:.0%}</text>')
    for name, values in found.items():
        shown = [at(share, max(value, LEAST)) for share, value in zip(SHARES, values, strict=True)]
        parts.append(f'<polyline points="{" ".join(shown)}" fill="none" stroke="{COLOURS[name]}" stroke-width="2.5"/>')
        share, right, down, anchor = LABELS[name]
        x, y = (float(part) for part in shown[SHARES.index(share)].split(","))
        place = f'x="{x + right:.0f}" y="{y + down:.0f}" text-anchor="{anchor}"'
        style = f"fill:{COLOURS[name]};font-weight:600"
        parts.append(f'<text {place} style="{style}">{POLICY_NAMES[name]}</text>')
    title = "Time of an epoch, in sequential reads of the whole file"
    parts.append(f'<text class="t" x="{left}" y="24">{title}</text>')
    return _svg(left + wide + 48, top + high + 50, title, parts)


# --- what was recorded ----


class Theme(NamedTuple):
    """Colours of a picture that has a light and a dark variant."""

    ground: str
    text: str
    grid: str
    readers: tuple[str, str, str]  # people, expert, solar


LIGHT = Theme("#ffffff", "#333333", "#e2e2e2", ("#6b7480", "#b4591f", "#1668a8"))
DARK = Theme("#0d1117", "#d5dbe2", "#30363d", ("#8d97a3", "#f0955c", "#62b0f0"))
READERS = ("PyTorch + h5py, workers", "the best without solar", "solar")
LATER = "samples a second, later epochs"
Gain = tuple[str, str, float]  # what was read, beside whom, and how many times as fast solar is


def opening(wide: int, high: int) -> str:
    """The first tag of a picture: with both sides, by which a browser keeps its place before it is there."""
    sides = f'viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {sides} role="img">'


def themed(wide: int, high: int, title: str, theme: Theme, parts: Iterable[str]) -> str:
    """A picture without a style sheet, so that whatever draws it draws it alike."""
    head = opening(wide, high)
    text = f'<g font-family="system-ui,sans-serif" font-size="13" fill="{theme.text}">'
    ground = f'<rect width="{wide}" height="{high}" rx="6" fill="{theme.ground}"/>'
    headed = words(16, 26, title, size=16, weight=600)
    named = f"<title>{html.escape(title)}</title>"
    return "\n".join((head, named, ground, text, headed, *parts, "</g>", "</svg>\n"))


def words(x: float, y: float, said: str, anchor: str = "", size: int = 0, weight: int = 0) -> str:
    how = f' text-anchor="{anchor}"' if anchor else ""
    how += f' font-size="{size}"' if size else ""
    how += f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x:.1f}" y="{y}"{how}>{html.escape(said)}</text>'


def legend(left: int, entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A square of each colour, and what it stands for."""
    for place, (colour, said) in enumerate(entries):
        x = left + 190 * place
        yield f'<rect x="{x}" y="38" width="13" height="13" fill="{colour}"/>'
        yield words(x + 19, 49, said)


class Scale(NamedTuple):
    """A logarithmic axis, from the power of ten below the least value."""

    least: float
    most: float
    left: int
    wide: int

    @classmethod
    def of(cls, values: Iterable[float], left: int, wide: int) -> Scale:
        found = [*values]
        return cls(10.0 ** math.floor(math.log10(min(found))), max(found), left, wide)

    def at(self, value: float) -> float:
        return self.left + self.wide * math.log(value / self.least) / math.log(self.most / self.least)

    def lines(self, values: Iterable[float], top: float, foot: float, theme: Theme) -> Iterator[str]:
        for value in values:
            if self.least <= value <= self.most:
                yield f'<path d="M{self.at(value):.1f} {top}V{foot}" stroke="{theme.grid}"/>'
                yield words(self.at(value), foot + 18, f"{value:,g}", anchor="middle", size=12)

    def bar(self, value: float, y: float, thick: int, colour: str, said: str) -> Iterator[str]:
        long = self.at(value) - self.left
        yield f'<rect x="{self.left}" y="{y}" width="{long:.1f}" height="{thick}" fill="{colour}"/>'
        yield words(self.left + long + 6, y + thick - 3, said, size=12)


POWERS = (1, 10, 100, 1_000, 10_000, 100_000)


def bars(found: Sequence[Situation], title: str, theme: Theme) -> str:
    """Three bars for each situation: what people run, the best without solar, solar."""
    top, each, thick = 66, 80, 15
    scale = Scale.of((reading.rate for one in found for reading in one[1:4]), 22, 560)
    foot, right = top + each * len(found), scale.left + scale.wide
    parts = [*legend(16, zip(theme.readers, READERS, strict=True)), *scale.lines(POWERS, top, foot, theme)]
    for place, one in enumerate(found):
        y = top + each * place + 20
        gained = " and ".join(times(one.solar.rate, other.rate) for other in one[1:3]) + " as fast"
        parts.append(words(16, y, one.title, weight=600))
        said_of = (one.people.label if one.note else "", one.expert.label, gained)
        for line, (reading, more) in enumerate(zip(one[1:4], said_of, strict=True)):
            said = " · ".join(filter(None, (tables.rate(reading.rate), more)))
            parts += scale.bar(reading.rate, y + 7 + line * (thick + 1), thick, theme.readers[line], said)
    parts.append(words(right, foot + 36, LATER, anchor="end", size=12))
    return themed(right + 230, foot + 48, title, theme, parts)


def faster(theme: Theme) -> str:
    """Five situations of README."""
    found = situations.of_readme()
    return bars([found[place] for place in situations.DRAWN], "Samples a second in five situations", theme)


def storages() -> str:
    """Three storages, samples of three sizes, memory for a quarter of the data."""
    names = [f"{storage}_{size}" for storage in ("disks", "flash", "nvme") for size in ("64kb", "3mb", "17mb")]
    found = [situations.of_buffer(name, 0.25) for name in names]
    return bars(found, "Three storages, samples of three sizes", LIGHT)


def gains(found: Sequence[Gain], title: str) -> str:
    """A point for each: left of the line the other reader is faster, right of it solar is."""
    left = 30 + round(6.4 * max(len(one[0]) for one in found))
    wide, top, each, theme = 300, 44, 17, LIGHT
    scale, foot = Scale.of((one[2] for one in found), left, wide), top + each * len(found) + 6
    parts = [*scale.lines((0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100), top, foot, theme)]
    parts.append(f'<path d="M{scale.at(1):.1f} {top}V{foot}" stroke="{theme.text}"/>')
    for place, (what, whom, gain) in enumerate(found):
        y, colour = top + each * place + 12, theme.readers[2 if gain >= 1 else 1]
        begin, end = sorted((scale.at(1), scale.at(gain)))
        parts.append(words(left - 10, y, what, anchor="end", size=12))
        parts.append(f'<path d="M{begin:.1f} {y - 4}H{end:.1f}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{scale.at(gain):.1f}" cy="{y - 4}" r="4.5" fill="{colour}"/>')
        parts.append(words(left + wide + 14, y, f"{gain:.1f} × {whom}", size=12))
    parts.append(words(left + wide, foot + 36, "times as fast, later epochs", anchor="end", size=12))
    return themed(left + wide + 210, foot + 48, title, theme, parts)


def experts() -> str:
    """Solar beside the best other reader in every scene of files and of memory."""
    found = list[Gain]()
    for of in tables.by_scene(records.quoted("rates")).values():
        others = tables.others(of)
        if others and "solar_loader" in of:
            one_epoch = ", one epoch" if others[0]["epochs"] == 1 else ""
            found.append((of["solar_loader"]["title"] + one_epoch, others[0]["label"], tables.ratio(of)))
    for gain, title, of in buffer_tables.contests(records.quoted("buffer")).values():
        best = buffer_tables.best_other(of)
        if best and "solar" in of:
            found.append((title, best["label"], gain))
    return gains(sorted(found, key=lambda one: one[2]), "Solar beside the best reader without it")


def formats() -> str:
    """Solar over HDF5 beside the formats and loaders that people leave h5py for."""
    return gains(shapes_tables.beside_formats(records.quoted("shapes")), "Solar over HDF5 beside other formats")


def rates() -> str:
    """Samples per second of PyTorch with h5py and of solar, for each kind of file that was read more than once."""
    recorded = tables.by_scene(records.quoted("rates")).values()
    scenes = [of for of in recorded if {"solar_loader", "torch_h5py"} <= of.keys() and of["solar_loader"]["epochs"] > 1]
    scenes.sort(key=lambda of: of["solar_loader"]["steady"] / of["torch_h5py"]["steady"])
    left, wide, top, high, theme, peers = 320, 400, 62, 36, LIGHT, ("torch_h5py", "solar_loader")
    scale = Scale.of((of[peer]["steady"] for of in scenes for peer in peers), left, wide)
    colours, foot = (theme.readers[0], theme.readers[2]), top + high * len(scenes)
    parts = [*legend(left, zip(colours, READERS[::2], strict=True)), *scale.lines(POWERS, top, foot, theme)]
    for place, of in enumerate(scenes):
        y = top + high * place + 4
        parts.append(words(left - 10, y + 18, of["solar_loader"]["title"], anchor="end", size=12))
        for line, (peer, colour) in enumerate(zip(peers, colours, strict=True)):
            value = of[peer]["steady"]
            parts += scale.bar(value, y + 14 * line, 13, colour, tables.rate(value))
    parts.append(words(left + wide, foot + 36, LATER, anchor="end", size=12))
    return themed(left + wide + 80, foot + 48, "PyTorch + h5py and solar, by kind of file", theme, parts)


def how(theme: Theme) -> str:
    """What lies between a file and a batch: the shuffled order, a plan, long reads, memory, batches."""
    rng = np.random.default_rng(3)
    kept = sorted(rng.choice(32, 12, replace=False).tolist())
    drawn, colour = rng.permutation(kept).tolist(), dict(zip(kept, shades(len(kept), theme), strict=True))

    def box(x: int, head: str, said: str) -> Iterator[str]:
        yield f'<rect x="{x}" y="44" width="300" height="48" rx="5" fill="none" stroke="#888888"/>'
        yield from (words(x + 12, 64, head, weight=600), words(x + 12, 82, said, size=12))

    def arrow(x: int, y: int, wide: int, high: int) -> str:
        tip = f"M{x + wide} {y + high}l" + ("-8 -4v8z" if wide else "-4 -8h8z")
        return f'<path d="M{x} {y}h{wide}v{high}" stroke="#888888"/><path d="{tip}" fill="#888888"/>'

    def cell(x: float, y: int, sample: int) -> str:
        return f'<rect x="{x:.1f}" y="{y}" width="19" height="20" fill="{colour.get(sample, theme.grid)}"/>'

    parts = [
        *box(16, "the shuffled order of all epochs", "as PyTorch's random state gives it"),
        *box(404, "the plan", "what to read, keep and drop at each step"),
        arrow(316, 68, 88, 0), words(16, 132, "HDF5 file", weight=600), arrow(554, 92, 0, 44),
        words(544, 120, "few long reads, in file order", anchor="end", size=12),
        *(cell(16 + 21.5 * sample, 142, sample) for sample in range(32)),
        arrow(180, 168, 0, 32), words(192, 190, "native threads read and decode", size=12),
        words(16, 220, "memory", weight=600), *(cell(90 + 21.5 * at, 206, one) for at, one in enumerate(kept)),
        arrow(180, 232, 0, 32), words(192, 254, "handed out in the shuffled order", size=12),
        words(16, 284, "batches", weight=600),
        *(cell(90 + 21.5 * at + 14 * (at // 4), 270, one) for at, one in enumerate(drawn)),
        words(404, 284, "the same samples, order and values as PyTorch’s", size=12),
    ]  # fmt: skip
    return themed(720, 306, "From a file to batches", theme, parts)


def shades(count: int, theme: Theme) -> list[str]:
    """From light to dark blue, so that the eye finds a sample again."""
    darkest = (12, 62, 104) if theme is LIGHT else (36, 100, 156)
    steps = np.linspace((159, 205, 240), darkest, count).astype(int).tolist()
    return ["#" + "".join(f"{part:02x}" for part in one) for one in steps]


# --- what solar itself draws ----


def plan(theme: Theme) -> str:
    """The drawing of `solar plan --plot`, on a ground of its own."""
    style = (
        f"<style>text{{font:12px system-ui,sans-serif;fill:{theme.text}}}.title{{font-size:14px;font-weight:600}}"
        f".axis{{stroke:#888888;fill:none}}.grid{{stroke:{theme.grid}}}.level{{stroke:#cc3333;stroke-dasharray:5 4}}"
        "</style>"
    )
    drawn = gallery.plan_svg().replace(plot.LINE_COLOURS["solar"], theme.readers[2])
    return grounded(drawn, "What solar plan draws", theme, style) + "\n"


def reported(name: str, theme: Theme) -> str:
    """The drawing of a report that a notebook shows."""
    drawn = gallery.report_svg(name).replace("currentColor", theme.text)
    wide, high = (int(re.findall(rf' {side}="(\d+)"', drawn)[0]) + 24 for side in ("width", "height"))
    inner = drawn.replace("<svg ", '<svg x="12" y="12" ', 1)
    head = opening(wide, high)
    return grounded(f"{head}{inner}</svg>", "What the time of each epoch went to", theme) + "\n"


def grounded(svg: str, title: str, theme: Theme, style: str = "") -> str:
    """A drawing with a ground behind it, for what shows it may be light or dark."""
    head, found, rest = svg.partition(">")
    named = f"<title>{html.escape(title)}</title>"
    return f'{head}{found}\n{named}{style}<rect width="100%" height="100%" rx="6" fill="{theme.ground}"/>{rest.strip()}'


CLUSTER_COLOURS = {"torch": "#6b7480", "pinned": "#b4591f", "windowed": "#7a5fb0", "solar": "#1668a8"}
CLUSTER_NAMES = cluster_tables.NAMES | {"pinned": "pinning"}


def cluster() -> str:
    """Times the rate of PyTorch with four workers, by the share of the data in memory, of the smallest samples."""
    found = cluster_tables.cases(records.read(ROOT / "bench" / "results" / "cluster.jsonl"))
    panels = [(ranks, shares) for (scene, ranks), shares in found.items() if scene == "ptychonn"]
    rates = [(of, of["torch"]["median"]) for _, shares in panels for of in shares.values()]
    most = max(one["median"] / base for of, base in rates for one in of.values())
    left, top, wide, bar = 92, 58, 330, 13
    high, parts = (len(CLUSTER_COLOURS) * bar + 12) * max(len(shares) for _, shares in panels), list[str]()
    for place, (ranks, shares) in enumerate(panels):
        x0 = left + place * (wide + 130)
        parts += _axes(x0, top, wide, high, "", "times PyTorch's rate")
        parts.append(f'<text class="t" x="{x0}" y="46">{ranks} ranks, samples of 64 KB</text>')
        for row, (share, of) in enumerate(shares.items()):
            y = top + 8 + row * (len(CLUSTER_COLOURS) * bar + 12)
            parts.append(f'<text x="{x0 - 8}" y="{y + 30}" text-anchor="end">{share:.0%} held</text>')
            for shift, (name, colour) in enumerate(CLUSTER_COLOURS.items()):
                if name in of:
                    ratio = of[name]["median"] / of["torch"]["median"]
                    long, foot = wide * ratio / most, y + bar * shift
                    parts.append(f'<path d="M{x0} {foot + 6}h{long:.1f}" stroke="{colour}" stroke-width="{bar - 2}"/>')
                    parts.append(f'<text x="{x0 + long + 5:.1f}" y="{foot + 10}">{ratio:.1f}</text>')
    for place, (name, colour) in enumerate(CLUSTER_COLOURS.items()):
        parts.append(f'<rect x="{20 + 190 * place}" y="12" width="14" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{40 + 190 * place}" y="23">{CLUSTER_NAMES[name]}</text>')
    return _svg(len(panels) * (wide + 130) + 20, top + high + 50, "Rates of readers, by the data in memory", parts)


ORDER_COLOURS = {
    "exact": "#6b7480", "mixed, 20 %": "#1668a8", "mixed, 5 %": "#3f9ad6", "mixed, 2 %": "#7a5fb0",
    "blocks of 1,024": "#b4591f",
}  # fmt: skip


def trained() -> str:
    """Accuracy after each epoch, of the mean of five seeds, for each order, on both data sets of bench.orders."""
    by: dict[str, dict[str, list[list[float]]]] = {}
    for one in orders_tables.of_part(records.read(ROOT / "bench" / "results" / "orders.jsonl"), "training"):
        by.setdefault(one["data"], {}).setdefault(one["order"], []).append(one["accuracy"])
    left, top, wide, high, parts = 64, 44, 330, 220, list[str]()
    for place, (data, found) in enumerate(by.items()):
        x0, least = left + place * (wide + 90), 0.0 if data == "sorted" else 0.8
        epochs = len(next(iter(found.values()))[0])
        parts += _axes(x0, top, wide, high, "", "epochs")
        parts.append(f'<text class="t" x="{x0}" y="24">accuracy: {orders_tables.DATA[data]}</text>')
        for share in (least, (1 + least) / 2, 1.0):
            y = top + high * (1 - (share - least) / (1 - least))
            parts.append(f'<path class="g" d="M{x0} {y:.1f}h{wide}"/>')
            parts.append(f'<text x="{x0 - 8}" y="{y:.1f}" dy="4" text-anchor="end">{share:.0%}</text>')
        for name, seeds in found.items():
            points = []
            for epoch, value in enumerate(np.mean(seeds, axis=0)):
                x = x0 + wide * (epoch + 1) / epochs
                points.append(f"{x:.1f},{top + high * (1 - (max(value, least) - least) / (1 - least)):.1f}")
            line = f'fill="none" stroke="{ORDER_COLOURS[name]}" stroke-width="2.2"'
            parts.append(f'<polyline points="{" ".join(points)}" {line}/>')
    for place, (name, colour) in enumerate(ORDER_COLOURS.items()):
        x = left + 150 * place
        parts.append(f'<rect x="{x}" y="{top + high + 52}" width="14" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 20}" y="{top + high + 63}">{name}</text>')
    return _svg(
        2 * (wide + left) + 60, top + high + 80, "Accuracy of a small network by the order of its samples", parts
    )


def windows() -> str:
    """Scans of an epoch against how many parts of the file a batch comes from, for memories of 2, 5 and 10 %."""
    units, batch = uniform(SAMPLES, SAMPLE), 64
    left, top, wide, high, most = 64, 44, 560, 250, 10.0
    parts = [*_axes(left, top, wide, high, "", f"parts of {REGIONS} that a batch of {batch} comes from")]
    for value in range(0, 11, 2):
        y = top + high * (1 - value / most)
        parts.append(f'<path class="g" d="M{left} {y:.1f}h{wide}"/><text x="{left - 8}" y="{y:.1f}" dy="4"')
        parts[-1] += f' text-anchor="end">{value}</text>'
    for value in range(0, 61, 10):
        x = left + wide * value / 60
        parts.append(f'<text x="{x:.0f}" y="{top + high + 16}" text-anchor="middle">{value}</text>')
    exact = distributed(SAMPLES)
    for share, colour in ((0.02, "#b4591f"), (0.05, "#7a5fb0"), (0.1, "#1668a8")):
        room = int(share * SAMPLES)
        points = []
        for window in (0.125, 0.25, 0.5, 0.7, 1.0, 2.0, None):
            if window is None:
                order = exact
            else:
                order = sampler_order(by_mixed_blocks(BlockMix(SAMPLES, 16, max(32, int(window * room)))))
            terms = {"batch": batch, "memory": room * SAMPLE, "epochs": 3}
            found = predicted(order, units, DISK, **terms).scans
            regions = regions_of_steps(order.of(1), SAMPLES, batch)
            points.append((left + wide * regions / 60, top + high * (1 - min(found, most) / most)))
        shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{shown}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
        x, y = points[-1]
        parts.append(f'<text x="{x + 9:.1f}" y="{y + 4:.1f}" style="fill:{colour}">{share:.0%}</text>')
    parts.append(f'<text class="t" x="{left}" y="24">Scans of an epoch, with memory for so much of the data</text>')
    parts.append(f'<text x="{left + wide}" y="24" text-anchor="end">last points: the exact shuffle</text>')
    return _svg(left + wide + 60, top + high + 50, "What a mixed order reads, by how random it is", parts)


def _axes(left: int, top: int, wide: int, high: int, upward: str, along: str) -> Iterator[str]:
    yield f'<path class="a" d="M{left} {top}V{top + high}H{left + wide}"/>'
    yield f'<text x="{left + wide}" y="{top + high + 34}" text-anchor="end">{along} →</text>'
    yield f'<text transform="translate({left - 14},{top + high}) rotate(-90)">{upward}{" →" if upward else ""}</text>'


def _svg(wide: int, high: int, title: str, parts: Iterable[str], style: str = STYLE) -> str:
    head = opening(wide, high)
    ground = f'<rect width="{wide}" height="{high}" rx="6" fill="#fff"/>' if style == STYLE else ""
    return "\n".join((head, f"<title>{html.escape(title)}</title>", style + ground, *parts, "</svg>\n"))


PICTURES: dict[str, Callable[[], str]] = {"pictures/reads": reads, "pictures/lives": lives, "pictures/memory": memory}
PICTURES |= {"rates": rates}
PICTURES |= {"pictures/faster": partial(faster, LIGHT), "pictures/faster-dark": partial(faster, DARK)}
PICTURES |= {"pictures/storages": storages, "pictures/experts": experts}
PICTURES |= {"pictures/how": partial(how, LIGHT), "pictures/how-dark": partial(how, DARK)}
PICTURES |= {"pictures/formats": formats}
PICTURES |= {"pictures/plan": partial(plan, LIGHT), "pictures/plan-dark": partial(plan, DARK)}
for _name in gallery.LOADERS:
    PICTURES |= {f"pictures/report-{_name}": partial(reported, _name, LIGHT)}
    PICTURES |= {f"pictures/report-{_name}-dark": partial(reported, _name, DARK)}
PICTURES |= {"pictures/orders-trained": trained, "pictures/orders-windows": windows}
PICTURES |= {"pictures/cluster": cluster}
PICTURES |= {"pictures/one-by-one": partial(moving, ours=False), "pictures/sweeps": partial(moving, ours=True)}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs"
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (folder / f"{name}.svg").write_text(draw())
        print(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
