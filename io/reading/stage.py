"""Tier: keeps bytes that were read from a slow storage, or decoded, in files on a local disk, and reads them there.

Which bytes may stay is decided here, under the lock of the folder, before anything is read: the first ones of each
dataset, as far as there is room. Native code writes and reads them (native/include/solar/stage.hpp).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import PlanError
from solar.io.hdf5.chunk_index import SETTLED_NS
from solar.io.system import atomic_file, quantities
from solar.values import Layout, is_unversioned, is_url

STAGE_BLOCK = 4096  # native/include/solar/stage.hpp
HEADER_PAGE = struct.Struct("<8sII16sQI4x")  # magic, version, block, token, bytes of the far file, claims
CLAIM = struct.Struct("<16sQQ")  # of which runs of blocks, how many of them have a place, those before which block
NOTED = 256  # blocks, of which a file system takes one more, at most, to note where they are
CLAIMS = (STAGE_BLOCK - 64 - 4) // CLAIM.size  # that a stage file has room for
STAGE_VERSION = 1
LOCK_WAIT = 60.0  # seconds
SUFFIX = ".stage"
KEPT_AS = ("stored", "decoded")

Runs = NDArray[np.int64]  # begin and end of each run of blocks
Claims = dict[bytes, tuple[int, int]]  # by its key: blocks, limit


@dataclass(frozen=True)
class Tier:
    """A folder on a local disk, and how many bytes may be used; None: all but the last twentieth of the disk."""

    folder: str
    nbytes: int | None = None
    decoded: bool = False  # chunks of local files are kept decoded, instead of bytes as they are stored

    @property
    def own(self) -> Path:
        """The folder in it that only solar uses."""
        return Path(self.folder) / f"solar-stage-{os.geteuid()}"


def tier_of(stage: str | os.PathLike[str] | None, size: int | str | None, kept_as: str = "stored") -> Tier | None:
    """Returns the Tier for `stage`, `stage_size` and `stage_as`, checked."""
    if kept_as not in KEPT_AS:
        raise PlanError(f"stage_as={kept_as!r}: it is one of {', '.join(map(repr, KEPT_AS))}")
    if stage is None:
        if size is not None or kept_as != "stored":
            given = f"stage_size={size!r}" if size is not None else f"stage_as={kept_as!r}"
            raise PlanError(f"{given} without `stage`: name the folder of a local disk")
        return None
    folder = os.fspath(stage)
    if not os.path.isdir(folder):  # noqa: PTH112 (as given, in the words)
        raise PlanError(f"stage={folder!r}: there is no such folder; name one of a local disk")
    if isinstance(size, str):
        size = quantities.size_of(size, shutil.disk_usage(folder).total)
    if size is not None and size <= 0:
        raise PlanError(f"stage_size={size!r}: a stage takes some bytes; leave out `stage` for none")
    return Tier(folder, size, kept_as == "decoded")


# --- what became of it, for words ----


@dataclass
class Became:
    """What this process knows of a Tier."""

    stages: dict[Path, tuple[bytes, _native.Stage]] = field(default_factory=dict)  # each with its token
    claims: dict[Path, dict[bytes, tuple[int, int]]] = field(default_factory=dict)  # blocks wanted, and had
    problems: dict[str, None] = field(default_factory=dict)  # in their order, each once


became_of_tiers: dict[Tier, Became] = {}


def tier_warnings(tier: Tier) -> str:
    """Returns warnings about a Tier in this process, one per line; none if all is well."""
    became = became_of_tiers.get(tier, Became())
    lines = [f"Not staged in {tier.folder}: {problem}." for problem in became.problems]
    stages = [stage for _, stage in became.stages.values()]
    lost = [stage.lost for stage in stages if stage.lost]
    stopped = [stage.stopped for stage in stages if stage.stopped and not stage.lost]
    if lost:
        lines.append(
            f"The stage in {tier.folder} is no longer read: {stage_reason(lost[0])}. Its data are read from afar."
        )
    if stopped:
        lines.append(
            f"Nothing more is staged in {tier.folder}: {stage_reason(stopped[0])}. What is there is still read."
        )
    if dropped := sum(stage.dropped for stage in stages):
        blocks = quantities.count(dropped, "block")
        lines.append(f"{blocks} of the stage in {tier.folder} had changed: read from afar again.")
    wanted, had = (sum(one[at] for of in became.claims.values() for one in of.values()) for at in (0, 1))
    if had < wanted:
        much = f"{quantities.size(had * STAGE_BLOCK)} of {quantities.size(wanted * STAGE_BLOCK)}"
        lines.append(
            f"The stage in {tier.folder} has room for {much}: give more stage_size, or empty it with "
            f"`solar stage --drop --to {tier.folder}`."
        )
    return "\n".join(lines)


def stage_reason(code: int) -> str:
    if code == errno.ENOSPC:
        return "the disk is full but for its last twentieth, which stays free"
    return "another file has its place" if code == errno.ESTALE else os.strerror(code)


# --- the door ----


def staged(source: _native.Source, layout: Layout, tier: Tier) -> _native.Source:
    """Returns the Source with its bytes kept in the Tier; the Source itself if the local disk refuses."""
    became = became_of_tiers.setdefault(tier, Became())
    try:
        with lock_folder(tier) as folder:
            files = StageFolder(folder, tier, became).files(layout)
    except OSError as error:
        became.problems[f"{error.strerror or error}"] = None
        return source
    return _native.staged(source, files)


def drop(tier: Tier, layouts: list[Layout] | None = None) -> tuple[int, int]:
    """Removes the stage files of these Layouts, or all. Returns how many there were, and the bytes they took."""
    with lock_folder(tier) as folder:
        names = None if layouts is None else {_name(one, at)[0] for one in layouts for at in range(len(one.paths))}
        gone = [path for path in _stage_files(folder) if names is None or path.name.partition("-")[0] in names]
        nbytes = sum(path.lstat().st_blocks * 512 for path in gone)
        for path in gone:
            path.unlink()
        atomic_file.sweep(folder)
    return len(gone), nbytes


class StagedFile(NamedTuple):
    """What is there of one file."""

    origin: str  # its path, as far as there was room for it
    decoded: bool  # its chunks, decoded
    nbytes: int  # of the disk
    most: int  # that it may take
    written: float  # last, in seconds since the epoch
    stale: bool  # the file was written to since, or is gone


def staged_files(tier: Tier) -> list[StagedFile]:
    """Returns what is there, in the order in which it was written to."""
    if not tier.own.exists():
        return []
    with lock_folder(tier) as folder:
        found = [(path, stage) for path in _stage_files(folder) if (stage := _StageFile.found(path)) is not None]
        return sorted((_described(path, stage) for path, stage in found), key=lambda one: one.written)


def _described(path: Path, stage: _StageFile) -> StagedFile:
    facts, (_, identity, *decoded) = path.lstat(), path.stem.split("-")
    now = None if is_url(stage.origin) else _identity_now(stage.origin)
    stale = now is not None and now != identity
    return StagedFile(stage.origin, bool(decoded), facts.st_blocks * 512, stage.taken, facts.st_mtime, stale)


def _identity_now(path: str) -> str:
    try:
        facts = os.stat(path)  # noqa: PTH116 (as stored)
    except OSError:
        return ""
    return _hashed([facts.st_size, facts.st_mtime_ns, facts.st_ino, facts.st_ctime_ns])


@contextmanager
def lock_folder(tier: Tier) -> Iterator[Path]:
    """Locks solar's folder, so that no other process decides meanwhile what stays there."""
    folder = tier.own
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise PlanError(
            f"{folder}: it is not a folder that only you may use, so nothing in it can be trusted: remove it, or name "
            "another `stage`"
        )
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _lock_stage(lock)
        yield folder
    finally:
        os.close(lock)


def _lock_stage(descriptor: int) -> None:
    end = time.monotonic() + LOCK_WAIT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise OSError(errno.ETIMEDOUT, f"its lock was not free for {LOCK_WAIT:.0f} s") from None
            time.sleep(0.01)


def _stage_files(folder: Path) -> Iterator[Path]:
    """Returns solar's stage files. Raises PlanError for a file that has such a name and is none."""
    for path in folder.glob(f"*{SUFFIX}"):
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise PlanError(f"{path}: it is no stage file of yours: remove it, or name another `stage`")
        yield path


# --- stage files ----


@dataclass
class _StageFile:
    """A stage file, as its last page describes it."""

    path: Path
    token: bytes
    nbytes: int  # of the far file; of its chunks, decoded
    claims: Claims
    origin: str = ""  # the path of the far file, as far as there was room for it

    @property
    def taken(self) -> int:
        """The most bytes of the disk that it may take, with the file system's own notes of them."""
        own = _size(self.nbytes) - _align(self.nbytes) + 2 * STAGE_BLOCK
        return own + sum(blocks + blocks // NOTED for blocks, _ in self.claims.values()) * STAGE_BLOCK

    def page(self) -> bytes:
        head = HEADER_PAGE.pack(b"SOLARSTG", STAGE_VERSION, STAGE_BLOCK, self.token, self.nbytes, len(self.claims))
        claims = b"".join(CLAIM.pack(key, *claim) for key, claim in self.claims.items())
        own = head.ljust(64, b"\0") + claims
        text = (own + os.fsencode(self.origin)[: STAGE_BLOCK - 4 - len(own)]).ljust(STAGE_BLOCK - 4, b"\0")
        return text + struct.pack("<I", zlib.crc32(text))

    @classmethod
    def found(cls, path: Path) -> _StageFile | None:
        """Reads a stage file; returns None if it is incomplete or of another version."""
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            page = os.pread(file.fileno(), STAGE_BLOCK, max(0, size - STAGE_BLOCK))
        if len(page) < STAGE_BLOCK or struct.unpack("<I", page[-4:])[0] != zlib.crc32(page[:-4]):
            return None
        magic, version, block, token, nbytes, count = HEADER_PAGE.unpack_from(page)
        sound = (magic, version, block) == (b"SOLARSTG", STAGE_VERSION, STAGE_BLOCK) and count <= CLAIMS
        if not sound or size != _size(nbytes):
            return None
        claims = (CLAIM.unpack_from(page, 64 + CLAIM.size * at) for at in range(count))
        origin = os.fsdecode(page[64 + CLAIM.size * count : -4].rstrip(b"\0"))
        return cls(path, token, nbytes, {key: (blocks, limit) for key, blocks, limit in claims}, origin)

    def make(self) -> None:
        with atomic_file.write_file(self.path, sync=False) as file:
            file.truncate(_size(self.nbytes))
            os.pwrite(file.fileno(), self.page(), _size(self.nbytes) - STAGE_BLOCK)

    def store(self) -> None:
        """Writes its last page."""
        with self.path.open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), self.page(), _size(self.nbytes) - STAGE_BLOCK)


def _align(nbytes: int) -> int:
    return -(-nbytes // STAGE_BLOCK) * STAGE_BLOCK


def _size(nbytes: int) -> int:
    """Returns the size of the stage file for a file of this size: its bytes, 4 bytes per block, and a page."""
    return _align(nbytes) + _align(_align(nbytes) // STAGE_BLOCK * 4) + STAGE_BLOCK


def _name(layout: Layout, file: int) -> tuple[str, str]:
    """Returns the name of a stage file, made of the far file's path and identity."""
    path = layout.paths[file]
    place = path if is_url(path) else os.path.realpath(path)
    facts = [layout.file_nbytes, layout.file_mtime_ns]
    facts += [layout.file_inode, layout.file_ctime_ns] if len(layout.file_inode) else []
    return hash_of(os.fsencode(place)).hex(), _hashed([int(one[file]) for one in facts])


def _hashed(identity: list[int]) -> str:
    return hash_of(",".join(map(str, identity)).encode()).hex()


def hash_of(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


class StageFolder:
    """Gives Layouts their places in a locked folder."""

    def __init__(self, folder: Path, tier: Tier, became: Became) -> None:
        self._folder, self._tier, self._became = folder, tier, became
        self._there: dict[str, dict[str, _StageFile]] = {}  # by the two halves of their names
        for path in _stage_files(folder):
            stage = _StageFile.found(path)
            if stage is None:
                path.unlink()  # left behind half made
                continue
            place, _, identity = path.stem.partition("-")
            self._there.setdefault(place, {})[identity] = stage
        every = [(path, one) for path, same in self._there.items() for one in same]
        self._taken = sum(self._there[place][one].taken for place, one in every)
        for place, one in sorted(every, key=lambda name: self._there[name[0]][name[1]].path.lstat().st_mtime_ns):
            if self._room() < 0:  # more was asked for before: what was written to longest ago goes
                self._remove(place, one)

    def files(self, layout: Layout) -> list[tuple[_native.Stage, int] | None]:
        """Returns, for each file of the Layout, its stage and the block up to which its bytes may be written."""
        runs = _runs_of_files(layout)
        return [self._file(layout, at, runs(at)) for at in range(len(layout.paths))]

    def _file(self, layout: Layout, at: int, runs: Runs) -> tuple[_native.Stage, int] | None:
        if not len(runs) or not self._may_stay(layout, at):
            return None
        key = hash_of(runs.astype("<i8").tobytes())
        wanted = int((runs[:, 1] - runs[:, 0]).sum())
        path = self._folder / f"{'-'.join(_name(layout, at))}{SUFFIX}"
        stage = self._stage(path, int(layout.file_nbytes[at]), layout.paths[at])
        blocks, limit = (0, 0) if stage is None else self._claim(stage, key, wanted, runs)
        self._became.claims.setdefault(path, {})[key] = wanted, blocks
        return None if stage is None else (self._shared(stage), limit)

    def decoded(self, layout: Layout, at: int, key: bytes, nbytes: int) -> _native.Stage | None:
        """Returns the stage of so many bytes, all of which have a place, of the chunks of a file; None: no room."""
        if not self._may_stay(layout, at):
            return None
        path = self._folder / f"{'-'.join(_name(layout, at))}-{key.hex()}{SUFFIX}"
        blocks = nbytes // STAGE_BLOCK
        stage = self._stage(path, nbytes, layout.paths[at], {key: (blocks, blocks)})
        self._became.claims.setdefault(path, {})[key] = blocks, 0 if stage is None else blocks
        return None if stage is None else self._shared(stage)

    def _may_stay(self, layout: Layout, at: int) -> bool:
        """Returns whether the file is one that can be told from what it was before; notes why not."""
        problem = ""
        if is_unversioned(layout.paths[at]):
            problem = f"the server of {layout.paths[at]} tells no version of it from another"
        just_now = time.time_ns() - int(layout.file_mtime_ns[at]) < SETTLED_NS
        if just_now and not is_url(layout.paths[at]):  # an object has a mark of its own for each time it is written
            problem = f"{layout.paths[at]} was written to less than two seconds ago"
        if problem:
            self._became.problems[problem] = None
        return not problem

    def _shared(self, stage: _StageFile) -> _native.Stage:
        """Returns the one stage object for all readers in this process."""
        token, native = self._became.stages.get(stage.path, (b"", None))
        if native is None or token != stage.token or native.lost:
            native = _native.Stage(str(stage.path), stage.token, stage.nbytes)
            self._became.stages[stage.path] = stage.token, native
        return native

    def _stage(self, path: Path, nbytes: int, origin: str, claims: Claims | None = None) -> _StageFile | None:
        """Returns the stage file for a file of this size, made if there is none; None if there is no room for it."""
        place, _, identity = path.stem.partition("-")
        same = self._there.setdefault(place, {})
        for stale in [one for one in same if one.partition("-")[0] != identity.partition("-")[0]]:
            self._remove(place, stale)  # the far file is another one now
        if identity not in same:
            made = _StageFile(path, secrets.token_bytes(16), nbytes, claims or {}, origin)
            if self._room() < made.taken:
                return None
            made.make()
            same[identity] = made
            self._taken += made.taken
        return same[identity]

    def _remove(self, place: str, identity: str) -> None:
        gone = self._there[place].pop(identity)
        self._taken -= gone.taken
        self._became.stages.pop(gone.path, None)
        self._became.claims.pop(gone.path, None)
        gone.path.unlink(missing_ok=True)

    def _claim(self, stage: _StageFile, key: bytes, wanted: int, runs: Runs) -> tuple[int, int]:
        """Returns how many of these blocks have a place, and the block before which they lie; stores a new claim."""
        before = stage.claims.get(key, (0, 0))
        blocks = max(before[0], min(wanted, before[0] + max(0, self._room()) // STAGE_BLOCK * NOTED // (NOTED + 1)))
        if blocks == before[0] or (key not in stage.claims and len(stage.claims) == CLAIMS):
            return before
        stage.claims[key] = blocks, _limit(runs, blocks)
        stage.store()
        self._taken += (blocks - before[0] + blocks // NOTED - before[0] // NOTED) * STAGE_BLOCK
        return stage.claims[key]

    def _room(self) -> int:
        return (1 << 62 if self._tier.nbytes is None else self._tier.nbytes) - self._taken


def _limit(runs: Runs, blocks: int) -> int:
    """Returns the block before which this many of the runs' blocks lie."""
    ends = np.cumsum(runs[:, 1] - runs[:, 0])
    last = int(np.searchsorted(ends, blocks))
    return int(runs[last, 1] - (ends[last] - blocks))


def _runs_of_files(layout: Layout) -> Callable[[int], Runs]:
    """Returns a function of a file's number that gives the runs of blocks with the chunks of a Layout, in order."""
    if len(layout.paths) == 1:
        return lambda _: merge_runs(layout.chunk_offset, layout.chunk_nbytes)
    file = layout.files_of_chunks(slice(None))
    order = np.argsort(file, kind="stable")
    begins = np.searchsorted(file[order], np.arange(len(layout.paths) + 1))

    def runs(at: int) -> Runs:
        own = order[begins[at] : begins[at + 1]]
        return merge_runs(layout.chunk_offset[own], layout.chunk_nbytes[own])

    return runs


def merge_runs(offset: NDArray[np.uint64], nbytes: NDArray[np.uint64]) -> Runs:
    some = np.flatnonzero(nbytes)
    begin = offset[some].astype(np.int64)
    end = -(-(begin + nbytes[some].astype(np.int64)) // STAGE_BLOCK)
    begin //= STAGE_BLOCK
    if not len(some):
        return np.empty((0, 2), np.int64)
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.concatenate(([True], begin[1:] > reach[:-1])))
    last = np.concatenate((first[1:], [len(begin)])) - 1
    return np.stack((begin[first], reach[last]), axis=1)
