"""Suggests which dataset was meant by a wrong name: one that ends alike, or is spelled almost alike.

If there is none, it lists the datasets that exist.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

NAMES_TOLD = 3  # suggestions at most
LOOKED_AT = 10_000  # paths compared at most
LISTED = 20  # datasets listed if no name is near
LONGEST_PATH = 500  # letters of a path; comparing takes longer the longer they are


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The full paths that `name` may have meant, the likeliest first; at most three.

    >>> nearest("counts", ["/entry/data/counts", "/entry/title"])
    ['/entry/data/counts']
    >>> nearest("/entry/data/count", ["/entry/data/counts", "/entry/title"])
    ['/entry/data/counts']
    """
    paths = sorted(path for path in islice(names, LOOKED_AT) if len(path) <= LONGEST_PATH)
    asked, last = "/" + name.strip("/"), name.strip("/").rpartition("/")[2]
    ends: dict[str, list[str]] = {}
    for path in paths:
        ends.setdefault(path.rpartition("/")[2], []).append(path)
    found = [path for end in (last, *difflib.get_close_matches(last, ends, NAMES_TOLD)) for path in ends.get(end, ())]
    # If several end alike, prefer the one whose groups are most like those asked for.
    found.sort(key=lambda path: -difflib.SequenceMatcher(None, asked, path).ratio())
    return list(dict.fromkeys(found))[:NAMES_TOLD] or difflib.get_close_matches(asked, paths, NAMES_TOLD)


def hint(name: str, shapes: Mapping[str, Sequence[int]], file: str) -> str:
    """Advice about a wrong `name`: "did you mean /entry/data/counts?", or else the datasets that exist.

    `shapes` of the datasets of `file`, by their names.
    """
    found = nearest(name, shapes)
    return f"did you mean {' or '.join(found)}?" if found else listed(shapes, file)


def listed(shapes: Mapping[str, Sequence[int]], file: str) -> str:
    """Names of at most 20 datasets. Those with as many samples as the largest come first."""
    if not shapes:
        return "it has no dataset"
    largest = max(shapes.values(), key=math.prod)
    names = sorted(shapes, key=lambda path: tuple(shapes[path][:1]) != tuple(largest[:1]))
    shown = ", ".join(path if len(path) <= LONGEST_PATH else path[:LONGEST_PATH] + "…" for path in names[:LISTED])
    more = f" and {len(names) - LISTED:,} more: `solar inspect {file}` lists all" if len(names) > LISTED else ""
    return f"it has {shown}{more}"
