"""Profile: the measured rates of a storage, kept as JSON.

The file (docs/planning.md lists its keys) is written whole, with mode 0600, and moved into place. It is checked when it
is read: every number must be one that a storage can have.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from solar.errors import PlanError
from solar.io.remote.location import place_of
from solar.io.system import quantities
from solar.values import Layout, Storage, is_url

PROFILE_VERSION = 1
MOST_NBYTES = 1 << 20  # of a profile; one is of 3 KB
LONGEST_NAME = 80  # letters of a mount point in the name of its profile
AGREEING = 1.5  # times as much is the most that any round measures of the least, or nobody knows what is true

# What a storage can do: seconds, bytes a second, requests a second, requests in flight.
RANGES = {"latency": (0.0, 100.0), "bandwidth": (1e3, 1e14), "iops": (1e-2, 1e10), "depth": (1.0, 4096.0)}


# What is assumed if nobody has measured, by the kind of file system.
ELSEWHERE = Storage(latency=3e-2, bandwidth=5e8, iops=2_000, depth=64)  # an object store, or the web
NETWORK = Storage(latency=2e-3, bandwidth=1e9, iops=500)  # a parallel file system on disks
DISK = Storage(latency=8e-3, bandwidth=150e6, iops=120)
FLASH = Storage(latency=1e-4, bandwidth=1.5e9, iops=50_000)
MEMORY = Storage(latency=2e-6, bandwidth=5e9, iops=1e6)
NETWORKS = ("lustre", "gpfs", "beegfs", "nfs", "nfs4", "ceph", "cifs", "smb3", "panfs", "orangefs", "9p", "afs", "fuse")
MEMORIES = ("tmpfs", "ramfs", "hugetlbfs")


@dataclass(frozen=True)
class Rate:
    """A measurement with requests of one size and a fixed number in flight."""

    nbytes: int
    depth: int
    requests: int
    bypassed: int  # of these requests, made past the page cache
    seconds: float

    @property
    def per_second(self) -> float:
        """The requests per second."""
        return self.requests / self.seconds


@dataclass(frozen=True)
class Profile:
    """A profile of one storage: where and how it was measured, the rates, and the Storage that explains them."""

    path: str
    made: str  # when, UTC
    how: str  # in words
    rates: tuple[Rate, ...]  # of all rounds together
    storage: Storage
    rounds: tuple[Storage, ...] = ()  # what each round measured
    load: float | None = None  # the machine's load average when measuring began; None: unknown
    cores: int = 0

    @property
    def busy(self) -> str:
        """Describes the load; empty if it is unknown."""
        if self.load is None:
            return ""
        return f"a load of {quantities.rounded(self.load)} on {quantities.count(self.cores, 'core')}"


def disagreement(rounds: Sequence[Storage]) -> str:
    """Returns by how much rounds of measuring disagree, in words; empty if they agree.

    >>> disagreement([Storage(1e-3, 1e9, 500), Storage(1e-3, 4e8, 510)])
    'bandwidth differs 2.5 times (400 MB/s to 1 GB/s)'
    """
    said: dict[str, Callable[[float], str]] = {"latency": quantities.duration, "bandwidth": quantities.rate}
    said["iops"] = lambda value: f"{quantities.short(value)}/s"
    found = []
    for name, words in said.items():
        least, most = (of(getattr(one, name) for one in rounds) for of in (min, max))
        if most > AGREEING * least:
            found.append(f"{name} differs {quantities.rounded(most / least)} times ({words(least)} to {words(most)})")
    return ", ".join(found)


def merge_rates(rates: Iterable[Rate]) -> tuple[Rate, ...]:
    """Returns one Rate for each size and depth, with the requests and the time of all rounds."""
    found: dict[tuple[int, int], Rate] = {}
    for one in rates:
        key = one.nbytes, one.depth
        last = found.get(key, Rate(*key, 0, 0, 0.0))
        bypassed, seconds = last.bypassed + one.bypassed, last.seconds + one.seconds
        found[key] = Rate(*key, last.requests + one.requests, bypassed, seconds)
    return tuple(found.values())


def fit_storage(rates: tuple[Rate, ...]) -> Storage:
    """Returns the Storage that explains these rates: `iops` from small requests, bandwidth from large ones.

    Both are taken at their best depth, and the storage has the larger of these depths. So a storage that answers one
    request at a time has depth 1.

    >>> rates = Rate(4096, 1, 250, 0, 1.0), Rate(4096, 8, 500, 0, 1.0), Rate(4_000_000, 1, 160, 0, 1.0)
    >>> storage = fit_storage(rates)
    >>> storage.latency, storage.iops, storage.bandwidth, storage.depth
    (0.004, 500.0, 640000000.0, 8)
    """
    rates = tuple(rate for rate in rates if rate.requests) or rates  # a busy machine may answer none in time
    small, large = min(rate.nbytes for rate in rates), max(rate.nbytes for rate in rates)
    of_small, of_large = ([rate for rate in rates if rate.nbytes == nbytes] for nbytes in (small, large))
    alone = min(of_small, key=lambda rate: rate.depth)
    return Storage(
        latency=alone.depth / alone.per_second,
        bandwidth=large * highest_rate(of_large),
        iops=highest_rate(of_small),
        depth=max(map(_enough, (of_small, of_large))),
    )


def highest_rate(rates: list[Rate]) -> float:
    return max(rate.per_second for rate in rates)


def _enough(rates: list[Rate]) -> int:
    """Returns the number of requests in flight beyond which more gain almost nothing."""
    return min(rate.depth for rate in rates if rate.per_second >= 0.95 * highest_rate(rates))


def stored_or_guessed(path: str | os.PathLike[str]) -> tuple[Storage, str]:
    """Returns the Storage that holds `path`, and the source of its numbers: the profile stored for it, else a guess.

    A stored profile that cannot be read is ignored, because nobody asked for it by name.
    """
    storage, kind = guess(path)
    said = f"guessed: {kind}; "
    try:
        stored = default_path(path)
        if stored.exists():
            return load(stored), f"profile {stored}"
    except PlanError as error:
        return storage, said + str(error)
    except (OSError, RuntimeError) as error:  # a folder that is not ours, or no home at all
        return storage, f"{said}the folder of profiles cannot be read: {error}"
    return storage, f"{said}measure it with `solar probe`"


def guess(path: str | os.PathLike[str]) -> tuple[Storage, str]:
    """Returns a guess of the Storage that holds `path`, by its file system and, if local, its disk."""
    if is_url(str(path)):
        return ELSEWHERE, "an object store or the web"
    kind = file_system(path) or "unknown file system"
    if kind in MEMORIES:
        return MEMORY, kind
    if kind.split(".")[0] in NETWORKS:
        return NETWORK, kind
    return (DISK, f"{kind} on a disk") if _rotates(path) else (FLASH, f"{kind} on flash")


def _rotates(path: str | os.PathLike[str]) -> bool:
    """Returns whether the file lies on a rotating disk, as far as the system says."""
    try:
        device = Path(path).stat().st_dev
    except OSError:  # it is gone, which whoever reads it is told
        return False
    folder = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if folder.resolve().name.startswith(("vd", "xvd")):  # virtual disks say they do, and do not know
        return False
    for queue in (folder / "queue", folder / ".." / "queue"):  # of the disk, and of the disk of a partition
        try:
            return (queue / "rotational").read_text().strip() == "1"
        except OSError:
            continue
    return False


# Bytes a second that one core decodes, by filter; the others are not slower than these.
DECODES = {1: 250e6, 4: 300e6, 307: 30e6, 32000: 600e6, 32015: 700e6}
DECODES_ELSE = 1e9


def decodes(layout: Layout) -> float:
    """Returns the bytes per second that one core decodes of these chunks; infinite without filters."""
    filters = [one.id for form in layout.forms for one in form.filters]
    return min((DECODES.get(number, DECODES_ELSE) for number in filters), default=math.inf)


def with_decoding(storage: Storage, layout: Layout, cores: int) -> Storage:
    """Returns the Storage with the rate at which this many cores of the node decode a Layout's chunks, unless given."""
    if storage.decode != float("inf"):
        return storage
    return replace(storage, decode=decodes(layout) * min(cores, os.cpu_count() or cores))


def default_path(path: str | os.PathLike[str]) -> Path:
    """Returns where the profile of the storage that holds `path` is kept: one per mount point, in the user's cache."""
    where = place_of(str(path)).root if is_url(str(path)) else str(mount_point(path))
    words = re.sub(r"[^A-Za-z0-9]+", "-", where).strip("-")
    return profile_folder() / f"{words[-LONGEST_NAME:] or 'root'}.json"


def profile_folder() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "solar" / "storage"


def mount_point(path: str | os.PathLike[str]) -> Path:
    """Returns the folder at which the file system that holds `path` is mounted; the root where none can be found."""
    here = Path(os.path.realpath(path))  # where links lead in a circle, Path.resolve raises before Python 3.13
    while not os.path.ismount(here) and here != here.parent:
        here = here.parent
    return here


def file_system(path: str | os.PathLike[str]) -> str:
    """Returns the kind of file system that holds `path`, as the system calls it; empty if unknown."""
    mounted = str(mount_point(path))
    kinds = [""]
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        facts, _, of_kind = line.partition(" - ")
        at = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), facts.split(" ")[4])
        if at == mounted:
            kinds.append(of_kind.split(" ")[0])
    return kinds[-1]  # what was mounted last covers the others


def save(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Writes a profile, whole or not at all, and readable only by its owner."""
    facts: dict[str, Any] = {
        "solar_storage": PROFILE_VERSION,
        "path": profile.path,
        "made": profile.made,
        "how": profile.how,
    }
    facts |= {**numbers(profile.storage), "load": profile.load, "cores": profile.cores}
    facts |= {"rounds": [numbers(one) for one in profile.rounds], "rates": [asdict(one) for one in profile.rates]}
    from solar.io.system import atomic_file  # few write one

    text = json.dumps(facts, indent=1)
    target = Path(path)
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_file.write_file(target) as file:
            file.write(text.encode() + b"\n")
    except OSError as error:
        raise PlanError(f"{target}: the profile cannot be stored: {error.strerror or error}") from error
    with suppress(RuntimeError):  # no home: then no folder is ours
        if target.parent == profile_folder():
            atomic_file.sweep(target.parent)


def numbers(storage: Storage) -> dict[str, float]:
    """Returns the numbers of a Storage that a profile has."""
    return {name: getattr(storage, name) for name in RANGES}


def load(path: str | os.PathLike[str]) -> Storage:
    """Returns the Storage in a profile. Raises PlanError if it is none, or has impossible numbers."""
    data = read_small_file(path)
    try:
        facts = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or nested without end
        raise PlanError(f"{path}: no storage profile: {short_name(error)}; make one with `solar probe`") from error
    if not isinstance(facts, dict) or facts.get("solar_storage") != PROFILE_VERSION:
        found = facts.get("solar_storage") if isinstance(facts, dict) else None
        raise PlanError(
            f"{path}: no storage profile of version {PROFILE_VERSION} (solar_storage is {short_name(found)}); "
            "make one with `solar probe`"
        )
    known = {name: number_of_fact(path, facts, name) for name in RANGES}
    depth = int(known.pop("depth"))
    return Storage(**known, depth=depth)


def read_small_file(path: str | os.PathLike[str]) -> bytes:
    """Returns the content of a small plain file; anything else (a pipe, a device, a huge file) is refused unread."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        hint = "; `solar probe FOLDER` makes one" if isinstance(error, FileNotFoundError) else ""
        raise PlanError(f"{os.fspath(path)}: the profile cannot be read: {error.strerror}{hint}") from error
    try:
        kind = os.fstat(descriptor).st_mode
        data = os.read(descriptor, MOST_NBYTES + 1) if stat.S_ISREG(kind) else b""
    except OSError as error:
        raise PlanError(f"{path}: the profile cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if not stat.S_ISREG(kind) or len(data) > MOST_NBYTES:
        what = f"more than {MOST_NBYTES:,} bytes" if stat.S_ISREG(kind) else "not a plain file"
        raise PlanError(f"{path}: no storage profile: {what}; make one with `solar probe`")
    return data


def number_of_fact(path: str | os.PathLike[str], facts: Mapping[str, Any], name: str) -> float:
    least, most = RANGES[name]
    value = facts.get(name)
    # Python takes a bool for an int, and NaN for a float: refuse both.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise PlanError(f"{path}: {name} is {short_name(value)}, and must be a number from {least:g} to {most:g}")
    return float(value)


def short_name(what: object) -> str:
    text = str(what) if isinstance(what, Exception) else json.dumps(what)
    return text if len(text) <= LONGEST_NAME else text[:LONGEST_NAME] + "…"
