"""Groups files by their contents: the files of a group can form one data set."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from solar import _native
from solar.errors import SolarError
from solar.io.layout.hdf5 import MOST_SURVEYED, THREADS


@dataclass(frozen=True)
class Kind:
    """Files that have the same datasets, of the same types and shapes but for the length along axis 0."""

    files: tuple[str, ...]
    problem: str = ""  # why none of these files can be read


def kinds_of(files: Sequence[str]) -> list[Kind]:
    """All files by kind, the most common kind first."""
    with ThreadPoolExecutor(THREADS) as threads:
        facts = list(threads.map(_facts, files))
    kinds: dict[Hashable, list[str]] = {}
    for file, fact in zip(files, facts, strict=True):
        kinds.setdefault(fact, []).append(file)
    found = [Kind(tuple(those), fact if isinstance(fact, str) else "") for fact, those in kinds.items()]
    return sorted(found, key=lambda kind: (bool(kind.problem), -len(kind.files)))


def _facts(file: str) -> Hashable:
    """The facts that files of a kind share; a text if the file cannot be read."""
    try:
        found = _native.read_metadata(file, most=MOST_SURVEYED)
    except SolarError as error:
        return str(error).removeprefix(f"{file}: ")
    datasets = found["datasets"] + found["linked"]
    return tuple(
        (one["name"], one["datatype"], len(one["shape"]), tuple(one["shape"][1:]), one["problem"]) for one in datasets
    )
