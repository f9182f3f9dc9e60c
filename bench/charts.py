"""Drawings of records, by matplotlib: each chart is made once for light pages and once for dark ones."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Record = dict[str, Any]
DPI = 110
BAR = 0.24  # inches a bar takes
CHARACTER = 0.08  # decades that a character of a label is wide, in the overview
SOLAR, TORCH = ("solar_loader", "solar"), ("torch_h5py", "torch_h5py_sorted", "torch")  # loaders, by any bench
LIMITS = ("limit_pread", "limit_decode")


@dataclass(frozen=True)
class Theme:
    """Colours that can be told apart, also by those who see no red or green, on one ground."""

    ground: str
    ink: str
    faint: str
    solar: str
    torch: str
    limit: str
    other: str
    policy: str


LIGHT = Theme("#ffffff", "#22262b", "#d9dde2", "#1668a8", "#6b7480", "#22262b", "#c9b48a", "#b4591f")
DARK = Theme("#16191d", "#d6dbe1", "#353b43", "#5ba8e5", "#98a2ae", "#d6dbe1", "#8a7a55", "#e8935a")


def png(draw: Callable[[Any, Theme], None], theme: Theme, wide: float, high: float) -> bytes:
    """What `draw` puts on a figure of this theme, in inches wide and high."""
    from matplotlib import rc_context  # an extra: only drawing needs it
    from matplotlib.figure import Figure

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style = dict.fromkeys(inked, theme.ink) | {
        "axes.facecolor": theme.ground, "axes.spines.top": False, "axes.spines.right": False, "grid.color": theme.faint,
        "font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left", "hatch.linewidth": 0.6,
    }  # fmt: skip
    with rc_context(style):
        figure = Figure(figsize=(wide, high), layout="constrained", facecolor=theme.ground)
        draw(figure, theme)
        into = io.BytesIO()
        figure.savefig(into, format="png", dpi=DPI, metadata={"Software": None})
    return into.getvalue()


def colour(record: Record, theme: Theme) -> str:
    """Ours, PyTorch's, a limit, a policy of others', anyone else."""
    name = record["peer"]
    if any(word in f"{name} {record['label']}".lower() for word in ("policy", "paper", "nopfs")):
        return theme.policy
    for begin, of in (("solar", theme.solar), ("torch_h5py", theme.torch), ("limit", theme.ground)):
        if name.startswith(begin):
            return of
    return {"torch": theme.torch, "pinned": theme.policy}.get(name, theme.other)


# --- loaders ----


def peers(records: Sequence[Record]) -> tuple[Callable[[Any, Theme], None], float, float]:
    """Samples a second of each loader in one scene, and the memory of its processes beside it."""
    shown = sorted(records, key=lambda record: -record["median"])

    def draw(figure: Any, theme: Theme) -> None:
        speed, memory = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        places = np.arange(len(shown))
        medians = [record["median"] for record in shown]
        rounds = [record.get("samples_per_second") or [record["median"]] for record in shown]
        spread = [[m - min(r) for m, r in zip(medians, rounds, strict=True)],
                  [max(r) - m for m, r in zip(medians, rounds, strict=True)]]  # fmt: skip
        colours = [colour(record, theme) for record in shown]
        speed.barh(places, medians, 0.72, color=colours, edgecolor=theme.ink, linewidth=0.4)
        speed.errorbar(medians, places, xerr=np.maximum(spread, 0), fmt="none", ecolor=theme.ink, elinewidth=0.8)
        _label(speed, places, [max(r) for r in rounds], [rate(value) for value in medians])
        used = [record.get("peak_rss", 0) / 1e6 for record in shown]
        memory.barh(places, used, 0.72, color=colours, edgecolor=theme.ink, linewidth=0.4)
        _label(memory, places, used, [f"{value:,.0f}" if value else "not measured" for value in used])
        speed.set_yticks(places, [record["label"] for record in shown])
        speed.invert_yaxis()
        speed.set_title("throughput, samples/s (line: least to most)")
        memory.set_title("peak memory of all processes, MB")
        for axes in (speed, memory):
            axes.set_xticks([])
            axes.spines["bottom"].set_visible(False)
            axes.margins(y=0.02)

    return draw, 9.6, 0.7 + BAR * len(shown)


def _label(axes: Any, places: Any, ends: Sequence[float], texts: Sequence[str]) -> None:
    most = max([*ends, 1e-9])
    axes.set_xlim(0, 1.22 * most)
    for place, end, text in zip(places, ends, texts, strict=True):
        axes.text(end + 0.015 * most, place, text, va="center", fontsize=8)


def rate(samples_per_second: float) -> str:
    """At least three figures: 12.3, 456, 7,890."""
    return f"{samples_per_second:,.0f}" if samples_per_second >= 100 else f"{samples_per_second:.3g}"


def overview(groups: Sequence[Sequence[Record]]) -> tuple[Callable[[Any, Theme], None], float, float]:
    """Solar beside the better of PyTorch's and the limit, for each scene."""

    def best(group: Sequence[Record], who: tuple[str, ...]) -> float:
        return max((one["median"] for one in group if one["peer"] in who), default=np.nan)

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.subplots()
        places = np.arange(len(groups))
        limits = np.array([best(group, LIMITS) for group in groups])
        for shift, who, label, of in (
            (-0.19, TORCH, "PyTorch + h5py, its best", theme.torch), (0.19, SOLAR, "solar", theme.solar),
        ):  # fmt: skip
            values = [best(group, who) for group in groups]
            axes.barh(places + shift, values, 0.36, color=of, label=label)
            for place, value, limit in zip(places, values, limits, strict=True):
                if value == value:
                    under_mark = value * 0.95 < limit < value * 10 ** (CHARACTER * (len(rate(value)) + 1))
                    axes.text((limit * 1.12 if under_mark else value * 1.06), place + shift, rate(value),
                              va="center", fontsize=7.5)  # fmt: skip
        mark = {"marker": "|", "s": 420, "linewidths": 1.6, "color": theme.limit, "zorder": 3}
        axes.scatter(limits, places, label="limit of the machine", **mark)
        axes.set_yticks(places, [title_of(group[0]) for group in groups])
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.margins(x=0.08, y=0.02)
        axes.set_xlabel("samples/s (logarithmic)")
        figure.legend(loc="outside upper left", ncols=3, frameon=False, markerscale=0.5)

    return draw, 9.6, 1.2 + 0.46 * len(groups)


def title_of(record: Record) -> str:
    """The scene, and the memory or ranks it was read with."""
    fraction, ranks = record.get("fraction"), record.get("ranks", 1)
    parts = [record.get("title", record.get("scene", ""))]
    parts += [f"memory for {fraction:.0%} of the data"] if fraction else []
    parts += [f"{ranks} ranks"] if ranks != 1 and "rank" not in parts[0] else []
    parts += ["quick run"] if record.get("quick") else []
    return ", ".join(parts)


# --- utilisation ----


def utilisation(records: Sequence[Record]) -> tuple[Callable[[Any, Theme], None], float, float]:
    """The share of its time that an emulated accelerator computed; a mark where the storage allows no more."""
    shown = sorted(records, key=lambda record: (record.get("bench", ""), record.get("scene", ""), record["peer"]))

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.subplots()
        places = np.arange(len(shown))
        shares = [[100 * share for share in shares_of(record)] for record in shown]
        middle = np.array([np.median(one) for one in shares])
        spread = [middle - [min(one) for one in shares], [max(one) for one in shares] - middle]
        axes.barh(places, middle, 0.72, color=[colour(record, theme) for record in shown])
        axes.errorbar(middle, places, xerr=spread, fmt="none", ecolor=theme.ink, elinewidth=0.8)
        axes.scatter([100 * record.get("most", np.nan) for record in shown], places, marker="|", s=130, color=theme.ink)
        for place, one, value in zip(places, shares, middle, strict=True):
            end = max(one) + 1.5
            axes.text(end if end < 90 else 101.5, place, f"{value:.1f} %", va="center", fontsize=8)  # beside the mark
        scenes = ["DLIO, " * (one.get("bench") == "dlio") + title_of(one) for one in shown]
        axes.set_yticks(places, [f"{scene}: {one['label']}" for scene, one in zip(scenes, shown, strict=True)])
        axes.invert_yaxis()
        axes.set_xlim(0, 114)
        axes.set_xticks(range(0, 101, 25))
        axes.set_xlabel("accelerator utilisation, % of the time")
        axes.set_title("line: least to most; mark: what the storage allows")

    return draw, 9.6, 0.8 + BAR * len(shown)


def shares_of(record: Record) -> list[float]:
    """The utilisation of a record in each of its epochs, from 0 to 1; empty where it has none."""
    found = record.get("utilisation", [])
    return [float(share) for share in (found if isinstance(found, list) else [found])]


# --- one epoch as it passed ----


def timeline(record: Record) -> tuple[Callable[[Any, Theme], None], float, float]:
    """For each loader when the training waited; and what solar read and decoded meanwhile."""
    loaders = record["loaders"]
    counted = [one for one in loaders if "bytes" in one]

    def draw(figure: Any, theme: Theme) -> None:
        heights = (1, *[1.1] * len(counted))
        rows = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
        lanes, *below = rows[:, 0]
        for place, one in enumerate(loaders):
            spans = [*zip(one["began"], one["waited"], strict=True)]
            lanes.broken_barh([(0, one["seconds"])], (place - 0.35, 0.7), color=theme.solar, alpha=0.45, lw=0)
            lanes.broken_barh(spans, (place - 0.35, 0.7), color=theme.policy, lw=0)
            share = sum(one["waited"]) / one["seconds"]
            lanes.text(one["seconds"], place, f"  {one['seconds']:.2f} s, {share:.0%} waiting", va="center", fontsize=8)
        lanes.set_yticks(range(len(loaders)), [one["label"] for one in loaders])
        lanes.invert_yaxis()
        lanes.set_title("the training computes (blue) or waits (orange)")
        lanes.set_xlim(0, 1.3 * max(one["seconds"] for one in loaders))
        for axes, one in zip(below, counted, strict=True):
            _amounts(axes, one, theme)
        rows[-1, 0].set_xlabel("seconds since the epoch began")

    return draw, 9.6, 1.2 + 0.35 * len(loaders) + 1.7 * len(counted)


def _amounts(axes: Any, one: Record, theme: Theme) -> None:
    came = np.array(one["began"]) + one["waited"]
    for name, label, of, style in (
        ("bytes", "read, as stored", theme.policy, "-"), ("bytes_decoded", "decoded", theme.solar, "--"),
    ):  # fmt: skip
        axes.step([0, *came], [0, *(np.array(one[name]) / 1e6)], where="post", color=of, ls=style, label=label)
    axes.set_title(f"{one['label']}: bytes of the batches handed out, MB")
    axes.grid(axis="y", lw=0.6)
    axes.legend(frameon=False, loc="upper left")


# --- training ----


def losses(curves: Sequence[tuple[str, Record]]) -> tuple[Callable[[Any, Theme], None], float, float]:
    """The loss of each step and of what was held out, of one example; runs of both loaders lie on one another."""

    def draw(figure: Any, theme: Theme) -> None:
        axes = figure.subplots()
        for label, curve in curves:
            ours = curve["loader"] == "solar"
            steps, of = curve["steps"], theme.solar if ours else theme.policy
            every = len(steps) / max(len(curve["held_out"]), 1)
            axes.plot(steps, color=of, lw=2.2 if ours else 0.9, alpha=0.55 if ours else 1, label=f"each step, {label}")
            axes.plot(np.arange(1, len(curve["held_out"]) + 1) * every - 1, curve["held_out"], color=of, lw=1,
                      marker="o" if ours else "x", ms=6, label=f"held out, {label}")  # fmt: skip
        axes.axhline(curves[0][1]["level"], color=theme.ink, lw=0.8, ls=":", label="level to be reached")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.set_xlabel("steps")
        axes.set_ylabel("loss (logarithmic)")
        axes.legend(frameon=False, fontsize=8)

    return draw, 9.6, 3.4
