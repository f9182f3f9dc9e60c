"""Which dataset somebody may have meant: its name ends as what was asked for, or is spelled much like it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

MOST = 3  # that are told
LOOKED_AT = 10_000  # paths, of files that have more
LONGEST = 500  # letters of a path; comparing takes longer the longer they are


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The full paths of what `name` may have meant, the likeliest first; at most three.

    >>> nearest("counts", ["/entry/data/counts", "/entry/title"])
    ['/entry/data/counts']
    >>> nearest("/entry/data/count", ["/entry/data/counts", "/entry/title"])
    ['/entry/data/counts']
    """
    paths = sorted(path for path in islice(names, LOOKED_AT) if len(path) <= LONGEST)
    asked, last = "/" + name.strip("/"), name.strip("/").rpartition("/")[2]
    ends: dict[str, list[str]] = {}
    for path in paths:
        ends.setdefault(path.rpartition("/")[2], []).append(path)
    found = [path for end in (last, *difflib.get_close_matches(last, ends, MOST)) for path in ends.get(end, ())]
    # Where several end alike, the one whose groups are most like those that were asked for.
    found.sort(key=lambda path: -difflib.SequenceMatcher(None, asked, path).ratio())
    return list(dict.fromkeys(found))[:MOST] or difflib.get_close_matches(asked, paths, MOST)


def hint(name: str, names: Iterable[str]) -> str:
    """The question to be asked, empty if there is nothing to be asked: did you mean /entry/data/counts?"""
    found = nearest(name, names)
    return f"did you mean {' or '.join(found)}?" if found else ""
