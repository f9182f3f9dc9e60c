"""A report as a notebook shows it: its words, and each epoch as a bar of what its time went to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from solar.io.machine.figures import duration

WIDTH, HEIGHT, LEFT = 640, 14, 60  # of the picture, of a bar, of the number before it
COMPUTED = "#8aa88f"
PALETTE = ("#c8553d", "#e0a458", "#5b8e9f", "#7a6f9b", "#b07aa1", "#9c755f", "#d4a6c8", "#4e6e81")  # of waiting


class Report(str):
    """The text of a report. A notebook shows it with a picture.

    >>> epochs = [(1, {"busy_seconds": 3.0, "wait_seconds": {"storage": 1.0}})]
    >>> report = Report.of("One epoch.", epochs)
    >>> print(report)
    One epoch.
    >>> "<svg" in report._repr_html_()
    True
    """

    epochs: Sequence[tuple[int, Mapping[str, Any]]] = ()

    @classmethod
    def of(cls, text: str, epochs: Sequence[tuple[int, Mapping[str, Any]]]) -> Report:
        """The text, and what each epoch took."""
        made = cls(text)
        made.epochs = [one for one in epochs if _passed(one[1]) > 0]
        return made

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<div>{_picture(self.epochs)}<pre>{escape(self)}</pre></div>"


def _passed(epoch: Mapping[str, Any]) -> float:
    return float(epoch["busy_seconds"] + sum(epoch["wait_seconds"].values()))


def _picture(epochs: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    if not epochs:
        return ""
    causes = list(dict.fromkeys(cause for _, one in epochs for cause, waited in one["wait_seconds"].items() if waited))
    colours = {"computing": COMPUTED, **{cause: PALETTE[at % len(PALETTE)] for at, cause in enumerate(causes)}}
    scale = (WIDTH - LEFT) / max(_passed(one) for _, one in epochs)
    lines = []
    for row, (number, one) in enumerate(epochs):
        top, left = row * (HEIGHT + 4), float(LEFT)
        lines.append(f'<text x="{LEFT - 6}" y="{top + HEIGHT - 3}" text-anchor="end">{number}</text>')
        for name, took in (("computing", one["busy_seconds"]), *one["wait_seconds"].items()):
            if took > 0:
                told = escape(
                    f"epoch {number}: {duration(took)} {'of ' if name == 'computing' else 'waiting for '}{name}"
                )
                lines.append(
                    f'<rect x="{left:.1f}" y="{top}" width="{took * scale:.1f}" height="{HEIGHT}" '
                    f'fill="{colours[name]}"><title>{told}</title></rect>'
                )
                left += took * scale
    bottom, place = len(epochs) * (HEIGHT + 4) + HEIGHT, LEFT
    for name, colour in colours.items():
        lines.append(f'<rect x="{place}" y="{bottom - 9}" width="9" height="9" fill="{colour}"/>')
        lines.append(f'<text x="{place + 13}" y="{bottom}">{escape(name)}</text>')
        place += 25 + 7 * len(name)
    return (
        f'<svg role="img" aria-label="What the time of each epoch went to" width="{WIDTH}" height="{bottom + 6}" '
        f'viewBox="0 0 {WIDTH} {bottom + 6}" font-family="sans-serif" font-size="11" fill="currentColor">'
        f"{''.join(lines)}</svg>"
    )
