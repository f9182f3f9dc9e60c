"""Which dataset somebody may have meant: its name ends as what was asked for, or is spelled much like it.

Where none is, which there are.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

MOST = 3  # that are told
LOOKED_AT = 10_000  # paths, of files that have more
LISTED = 20  # datasets, where no name is near
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


def hint(name: str, shapes: Mapping[str, Sequence[int]], file: str) -> str:
    """What may have been meant by `name`, or else what there is: did you mean /entry/data/counts?

    `shapes` of the datasets of `file`, by their names.
    """
    found = nearest(name, shapes)
    return f"did you mean {' or '.join(found)}?" if found else listed(shapes, file)


def listed(shapes: Mapping[str, Sequence[int]], file: str) -> str:
    """Names of datasets: at most 20, and first those that have as many samples as the largest."""
    if not shapes:
        return "it has no dataset"
    largest = max(shapes.values(), key=math.prod)
    names = sorted(shapes, key=lambda path: tuple(shapes[path][:1]) != tuple(largest[:1]))
    shown = ", ".join(path if len(path) <= LONGEST else path[:LONGEST] + "…" for path in names[:LISTED])
    more = f" and {len(names) - LISTED:,} more: `solar inspect {file}` lists all" if len(names) > LISTED else ""
    return f"it has {shown}{more}"
