"""Colours and signs, as far as the output has them."""

from __future__ import annotations

import os
import shutil
import sys

COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
SIGNS = (("│", "|"), ("├─", "|-"), ("└─", "`-"), ("×", "x"), ("·", "-"), ("→", "->"), ("…", "..."), ("–", "-"))


class Paint:
    """Colours and signs, as far as the output has them."""

    def __init__(self, coloured: bool, unicode: bool, width: int) -> None:
        self.coloured, self.unicode, self.width = coloured, unicode, width

    @classmethod
    def for_stdout(cls) -> Paint:
        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        unicode = "utf" in encoding().lower()
        return cls(coloured, unicode, min(shutil.get_terminal_size((120, 24)).columns, 140))

    def __call__(self, colour: str, text: str) -> str:
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if self.coloured and text else text

    def signs(self, text: str) -> str:
        """The text, in ASCII where the output has no more."""
        if self.unicode:
            return text
        for sign, plain in SIGNS:
            text = text.replace(sign, plain)
        return text.encode("ascii", "backslashreplace").decode()

    def code(self, text: str) -> str:
        """A line of Python that says the same, in ASCII where the output has no more: no name in it is changed."""
        return text if self.unicode else text.encode("ascii", "backslashreplace").decode()


def encoding() -> str:
    """What the output can say."""
    return sys.stdout.encoding or ""
