"""Late: what tells our own time limits from those of the code we call."""

from __future__ import annotations


class Late(TimeoutError):
    """What was waited for did not come in the time given; the text says what is missing."""
