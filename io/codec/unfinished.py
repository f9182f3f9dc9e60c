"""A file that is being written, and the journal beside it, from which the next run goes on.

Both have random names, `.OUT.solar-TOKEN.h5` and `.OUT.solar-TOKEN.journal`. The journal's first line is JSON: what is
made, from what. Then each chunk in the file has a line, in order: its size and its checksum, both hexadecimal. The line
does not give the chunk's place: chunks lie close behind each other, and begin with a magic number and their length, so
they can be found again. Each is checked as a whole, so neither unwritten bytes of libhdf5 nor a torn last line matter.

Chunks of other filters than ours cannot be recognised. If there are any (`placed` in the head), each line has a hash
instead of the checksum, and the chunk's place in the last 16 digits.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from solar import _native
from solar.errors import CodecError, PlanError, ReadError

JOURNAL_VERSION = 1
LINE = 26  # bytes: eight digits, a blank, sixteen digits, the end of the line
PLACED_LINE = 43  # the same, with a blank and sixteen digits more
MAGIC = b"SLC1"
NBYTES_AT = 72  # where a chunk says how long it is
SEARCH_BLOCK = 4 << 20  # read at a time when a chunk is looked for
FARTHEST = 64 << 20  # bytes between two chunks; after a larger gap the search ends
BACK = 16 << 10  # bytes that a small chunk may lie before the end of the last one


@dataclass
class Unfinished:
    """The file that is being written now, with its journal."""

    path: Path
    placed: bool  # the journal says where chunks are
    _journal: BinaryIO
    _lines: list[bytes] = field(default_factory=list)
    _records: int = 0

    @classmethod
    def begin(cls, target: Path, head: Mapping[str, Any], suffix: str = ".h5") -> Unfinished:
        """Returns an empty file beside `target` with its journal. While this process lives, no other run uses it."""
        token = secrets.token_hex(8)
        path = hidden_path(target, token, suffix)
        try:
            journal = _create(hidden_path(target, token, ".journal"), 0o600)
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            text = json.dumps({"version": JOURNAL_VERSION, "target": target.name, "file": path.name, **head})
            write_all(journal, text.encode() + b"\n")
            _create(path, 0o600).close()  # nobody else reads it before it has the mode of the original
        except OSError as error:
            raise ReadError(error.errno, f"nothing can be written here: {error.strerror}", str(path)) from error
        return cls(path, bool(head.get("placed")), journal)

    @property
    def journal(self) -> Path:
        """Where its journal is."""
        return Path(self._journal.name)

    def record(self, chunk: bytes, place: int) -> None:
        """Records a chunk that is in the file at `place`. `save` writes it to the journal."""
        self._records += 1
        if self.placed:
            line = b"%08x %s %016x\n" % (len(chunk), _hash_of(chunk).hex().encode(), place)
        else:
            line = b"%08x %s\n" % (len(chunk), chunk[-8:].hex().encode())
        self._lines.append(line)

    def save(self) -> None:
        """Writes the recorded chunks to the journal."""
        if self._lines:
            write_all(self._journal, b"".join(self._lines))
            self._lines.clear()

    def leave(self) -> None:
        """Closes both files for another run to go on with; removes them if they hold nothing of use."""
        with suppress(OSError):  # a full disk: chunks without a line are encoded again
            self.save()
        if self._records == 0:
            self.discard()
        self._journal.close()

    def publish(self, target: Path, force: bool, original: Path) -> None:
        """Gives the file, once it is complete and on the disk, the mode of the original and the name of the target."""
        with self.path.open("rb") as file:
            _keep_mode(file.fileno(), original.stat())
            os.fsync(file.fileno())
        if force:
            self.path.replace(target)
        else:
            _rename(self.path, target)
        _remove(Path(self._journal.name))
        self._journal.close()
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Removes both files."""
        _remove(self.path)
        _remove(Path(self._journal.name))
        self._journal.close()


def _keep_mode(descriptor: int, original: os.stat_result) -> None:
    """Gives a file the group and the mode of the original. If it cannot have the group, no group gains by that."""
    mode = stat.S_IMODE(original.st_mode) & 0o777
    if os.fstat(descriptor).st_gid != original.st_gid:
        try:
            os.fchown(descriptor, -1, original.st_gid)
        except OSError:  # you are not in that group: a member of yours may do what everybody may
            mode &= 0o707 | (mode & 0o007) << 3
    with suppress(OSError):  # a file system without modes
        os.fchmod(descriptor, mode)


def hidden_path(target: Path, token: str, suffix: str) -> Path:
    return target.with_name(f".{target.name[:180]}.solar-{token}{suffix}")


def _hash_of(chunk: bytes) -> bytes:
    return hashlib.blake2b(chunk, digest_size=8).digest()


def _create(path: Path, mode: int) -> BinaryIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return open_file(path, flags, mode)


def open_file(path: Path, flags: int, mode: int = 0o600) -> BinaryIO:
    return open(path, "r+b", buffering=0, opener=lambda name, _: os.open(name, flags, mode))


def write_all(file: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _rename(path: Path, target: Path) -> None:
    """Renames a file to a free name; PlanError if the name is taken by now."""
    try:
        os.link(path, target)  # unlike a rename it fails if the name is taken
    except FileExistsError:
        raise PlanError(f"{target} came to be meanwhile: --force overwrites it") from None
    except OSError:  # a file system without links
        if target.exists():
            raise PlanError(f"{target} came to be meanwhile: --force overwrites it") from None
        path.rename(target)
    else:
        path.unlink()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


# --- what an earlier run left ----


@dataclass(eq=False)
class Leftover:
    """The leftover of a run that was ended: its head, and the chunks that can be used again."""

    head: dict[str, Any]
    path: Path
    nbytes: NDArray[np.uint32]
    checks: NDArray[np.uint64]
    places: NDArray[np.int64] | None
    _journal: BinaryIO
    _file: BinaryIO | None = None
    _at: int = 0
    _lost: bool = False

    @property
    def first(self) -> int:
        """The number of its first chunk."""
        return int(self.head["first"])

    @property
    def chunks(self) -> int:
        """How many it had written."""
        return len(self.nbytes)

    def take(self, number: int) -> bytes | None:
        """A checked chunk; None if it cannot be found. Fastest if asked for in order."""
        at = number - self.first
        if self._lost or not 0 <= at < self.chunks:
            return None
        nbytes, check = int(self.nbytes[at]), self.checks[at].tobytes()
        try:
            if self._file is None:
                self._file = open_file(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            place = int(self.places[at]) if self.places is not None else None
            found = self._find(nbytes, check) if place is None else self._place(nbytes, check, place)
        except OSError:
            found = None
        self._lost = found is None
        return found

    def _place(self, nbytes: int, check: bytes, place: int) -> bytes | None:
        assert self._file is not None
        chunk = os.pread(self._file.fileno(), nbytes, place)
        return chunk if _hash_of(chunk) == check else None

    def _find(self, nbytes: int, check: bytes) -> bytes | None:
        if found := self._chunk_at(self._at, nbytes, check):
            return found
        begin = max(0, self._at - BACK)
        end = self._at + FARTHEST if self._at else 1 << 62
        for at in self._magic(begin, end):
            if found := self._chunk_at(at, nbytes, check):
                return found
        return None

    def _magic(self, begin: int, end: int) -> Iterator[int]:
        """Yields the places where a chunk's magic number stands."""
        assert self._file is not None
        while begin < end:
            block = os.pread(self._file.fileno(), SEARCH_BLOCK, begin)
            if len(block) < len(MAGIC):
                return
            at = block.find(MAGIC)
            while at >= 0:
                yield begin + at
                at = block.find(MAGIC, at + 1)
            begin += len(block) - len(MAGIC) + 1

    def _chunk_at(self, at: int, nbytes: int, check: bytes) -> bytes | None:
        assert self._file is not None
        descriptor = self._file.fileno()
        head = os.pread(descriptor, NBYTES_AT + 4, at)
        if head[:4] != MAGIC or int.from_bytes(head[NBYTES_AT:], "little") != nbytes:
            return None
        chunk = os.pread(descriptor, nbytes, at)
        if len(chunk) != nbytes or chunk[-8:] != check:
            return None
        try:
            _native.describe_codec(chunk)  # checks the whole of it
        except CodecError:
            return None
        self._at = at + nbytes
        return chunk

    def close(self) -> None:
        """Lets go of the files."""
        if self._file is not None:
            self._file.close()
        self._journal.close()

    def discard(self) -> None:
        """Removes them."""
        _remove(self.path)
        _remove(Path(self._journal.name))
        self.close()


def leftovers(target: Path) -> list[Leftover]:
    """The leftovers of earlier runs for this target. PlanError if one of them is still running."""
    found: list[Leftover] = []
    try:
        for path in sorted(target.parent.glob(f".{_plain(target.name[:180])}.solar-*.journal")):
            if one := leftover(target, path):
                found.append(one)
    except PlanError:
        for one in found:
            one.close()
        raise
    return found


def _plain(name: str) -> str:
    """A name with glob's special characters escaped."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def leftover(target: Path, path: Path) -> Leftover | None:
    """Returns the leftover that the journal at `path` describes; None if it is not ours, or of no use."""
    try:
        journal = open_file(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    facts = os.fstat(journal.fileno())
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
        journal.close()
        return None
    _lock(journal, target)
    head, _, lines = journal.read().partition(b"\n")
    try:
        said = json.loads(head)
        fits = said["version"] == JOURNAL_VERSION and said["target"] == target.name and isinstance(said["first"], int)
        name = Path(said["file"])
    except (ValueError, KeyError, TypeError, RecursionError):
        fits = False
    if not fits or name.name != said["file"] or name.stem != path.stem:
        journal.close()
        return None
    return Leftover(said, path.with_name(name.name), *parse_journal(lines, bool(said.get("placed"))), journal)


def _lock(journal: BinaryIO, target: Path) -> None:
    try:
        fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return  # a file system without locks
        journal.close()
        raise PlanError(f"another run is writing {target}: wait for its end, or end it") from None


def parse_journal(
    lines: bytes, placed: bool
) -> tuple[NDArray[np.uint32], NDArray[np.uint64], NDArray[np.int64] | None]:
    """Returns the sizes, checksums and places of the chunks, up to the first invalid line."""
    line, blanks = (PLACED_LINE, [8, 25]) if placed else (LINE, [8])
    whole = np.frombuffer(lines[: len(lines) // line * line], np.uint8).reshape(-1, line)
    good = (whole[:, blanks] == ord(" ")).all(axis=1) & (whole[:, -1] == ord("\n"))
    digits = np.delete(whole, [*blanks, line - 1], axis=1)
    good &= (((digits >= ord("0")) & (digits <= ord("9"))) | ((digits >= ord("a")) & (digits <= ord("f")))).all(axis=1)
    count = int(np.argmin(good)) if not good.all() else len(good)
    values = np.frombuffer(bytes.fromhex(digits[:count].tobytes().decode()), np.uint8)
    values = values.reshape(count, digits.shape[1] // 2)
    places = values[:, 12:].copy().view(">i8").ravel().astype(np.int64) & np.int64((1 << 62) - 1) if placed else None
    return values[:, :4].copy().view(">u4").ravel().astype(np.uint32), as_uint64(values[:, 4:12]), places


def as_uint64(values: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return values.copy().view(np.uint64).ravel()
