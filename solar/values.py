"""Layout: where samples lie. World: which rank we are. Storage: what reading costs. Outcome. And what a Run is told.

All of it is frozen, and does nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solar.errors import LayoutError, PlanError
from solar.samples.row_windows import Listing, RowWindows


@dataclass(frozen=True, eq=False)
class GroupNames:
    """The names of many groups, one after another, without an object for each."""

    text: bytes
    begins: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.begins) - 1

    def __getitem__(self, number: int) -> str:
        begin, end = self.begins[number : number + 2].tolist()
        return self.text[begin:end].decode(errors="surrogateescape")


BATCHES_AHEAD, BATCHES_AHEAD_FROM_AFAR = 4, 64  # that are read before they are asked for, where nobody says how many
UNVERSIONED = "unversioned+"  # before http:// or https://
READERS = ("direct", "h5py", "mpio", "mpio-collective", "none")
By = Literal["auto", "mpio", "mpio-collective"]  # who reads, as it is asked for


def is_url(path: str) -> bool:
    """Returns whether it names something elsewhere: it begins with a scheme, as native/include/solar/far.hpp has it.

    >>> is_url("s3://bucket/scan.h5"), is_url("/data/scan.h5"), is_url("/data/a://b.h5")
    (True, False, False)
    """
    return path.find("/") == path.find("://") + 1 > 1


KEPT_ENCODED = 65535  # native/include/solar/codec.hpp: chunks of our codec, checked and as they are stored; in no file


def is_unversioned(path: str) -> bool:
    """Returns whether it is a URL whose object is read although its server tells no version of it from another.

    >>> is_unversioned("unversioned+https://example.org/scan.h5"), is_unversioned("https://example.org/scan.h5")
    (True, False)
    """
    return path.startswith(UNVERSIONED)


@dataclass(frozen=True)
class World:
    """Which rank of how many this process is, and which of the ranks on its own node.

    >>> World(rank=5, ranks=8, rank_of_node=1, ranks_per_node=4)
    World(rank=5, ranks=8, rank_of_node=1, ranks_per_node=4)
    >>> World(rank=8, ranks=8)
    Traceback (most recent call last):
    solar.errors.PlanError: rank=8 of ranks=8: ranks count from 0 to ranks - 1
    """

    rank: int
    ranks: int
    rank_of_node: int = 0
    ranks_per_node: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name}={value!r}: it must be an int")
        if not 0 <= self.rank < self.ranks:
            raise PlanError(f"rank={self.rank} of ranks={self.ranks}: ranks count from 0 to ranks - 1")
        if not 0 <= self.rank_of_node < self.ranks_per_node <= self.ranks:
            raise PlanError(
                f"rank_of_node={self.rank_of_node} of ranks_per_node={self.ranks_per_node}, in a world of "
                f"{self.ranks}: a node has at most all ranks, and its own count from 0"
            )


@dataclass(frozen=True)
class Filter:
    """One filter of a chunk pipeline, as the file names it."""

    id: int
    flags: int
    values: tuple[int, ...] = ()


@dataclass(frozen=True)
class Form:
    """Chunk shape, filters and fill value that parts of a Layout share. Most Layouts have one Form."""

    chunk: tuple[int, ...]  # rank of a part; chunk[0] == 0: contiguous, as many rows as the part has
    filters: tuple[Filter, ...] = ()
    fill: bytes = b""  # empty: zeros
    # That a chunk decodes to, where its last row is not whole; 0: as many as its shape has. Follows from the others.
    nbytes: int = field(default=0, repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """Where the samples of one field lie: a dataset in one file, or the same dataset in many files, one after another.

    A part is the dataset of one file; a sample is a row of a part (or, with one sample per file, the whole part).
    The chunk arrays list the known chunks; with reader "direct" they list all of them.

    >>> import h5py, numpy, tempfile, solar
    >>> path = tempfile.mkdtemp() + "/scan.h5"
    >>> with h5py.File(path, "w") as file:
    ...     _ = file.create_dataset("x", data=numpy.zeros((100, 8, 8), "f4"), chunks=(1, 8, 8))
    >>> layout = solar.inspect(path, "x")
    >>> layout.samples, layout.sample_shape, layout.sample_nbytes, len(layout.chunk_offset), layout.reader
    (100, (8, 8), 256, 100, 'direct')
    """

    name: str
    paths: tuple[str, ...]
    file_nbytes: NDArray[np.uint64]
    file_mtime_ns: NDArray[np.int64]
    shape: tuple[int, ...]  # of all samples together; () for a scalar dataset
    dtype: np.dtype[Any]  # as h5py gives it; void of no bytes where it is not known
    storage: str  # "compact" "contiguous" "chunked" "external" "virtual", or "mixed" over parts
    index: str  # chunk index type, "" when not chunked
    reader: str  # "direct", "h5py", "mpio" or "mpio-collective" on request, or "none": cannot be read
    reason: str  # why not "direct"
    per_file: bool = False  # a sample is a whole dataset of one file
    forms: tuple[Form, ...] = ()
    part_file: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    part_form: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    part_first: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    part_chunks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    chunk_index: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))  # empty: entry k is chunk k
    chunk_offset: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    chunk_nbytes: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    chunk_mask: NDArray[np.uint32] = field(default_factory=lambda: np.empty(0, np.uint32))
    names: tuple[str, ...] = ()  # behind links, the dataset's name in each of `paths`; empty: `name`
    asked: tuple[str, ...] = ()  # behind links to other files, the files asked for; folders of files; empty: `paths`
    # Of datasets whose rows are those of others, or chunks in files of their own: which of `paths` each is in itself,
    # and its first sample. Else empty.
    dataset_file: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    dataset_first: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    # Where chunks of a part lie in files of their own, as those of Zarr do: which of `paths`. Else empty.
    chunk_file: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    groups: GroupNames | None = None  # whose datasets its parts are, or, where groups are samples, its samples
    # Not in the digest, for copies on other machines have others. Empty: not known.
    file_inode: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    file_ctime_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    decoded: DecodedChunks | None = None  # what its offsets are in, where a stage keeps chunks decoded

    def __post_init__(self) -> None:
        parts, chunks = len(self.part_file), len(self.chunk_offset)
        fits = (
            self.reader in READERS
            and len(self.paths) == len(self.file_nbytes) == len(self.file_mtime_ns)
            and len(self.file_inode) == len(self.file_ctime_ns) in (0, len(self.paths))
            and len(self.part_form) == parts
            and len(self.part_first) == len(self.part_chunks) == parts + 1
            and self.part_chunks[-1] == chunks == len(self.chunk_nbytes) == len(self.chunk_mask)
            and len(self.chunk_index) in (0, chunks)
            and len(self.chunk_file) in (0, chunks)
            and len(self.names) in (0, len(self.paths))
            and len(self.asked) in (0, len(self.dataset_file) if len(self.chunk_file) else len(self.names))
            and len(self.dataset_first) == (len(self.dataset_file) + 1 if len(self.dataset_file) else 0)
        )
        if not fits:
            raise LayoutError(f"{self.name}: the arrays of this Layout do not fit each other")

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = {"dataset_file": np.empty(0, np.int32), "dataset_first": np.empty(0, np.int64)}  # which 0.1.0 had not
        own["chunk_file"] = np.empty(0, np.int32)
        self.__dict__.update(own | state)

    def __repr__(self) -> str:
        files = self.files[0] if len(self.files) == 1 else f"{len(self.files)} files"
        read_by = f"{self.reader}: {self.reason}" if self.reason else self.reader
        return f"Layout({self.name!r} in {files}: {self.shape} {self.dtype}, {self.storage}, {read_by})"

    @property
    def title(self) -> str:
        """The dataset's name in messages, after the file's name; behind a link, also where the link starts."""
        return f"{self.names[0]} (linked from {self.asked[0]}: {self.name})" if self.names and self.asked else self.name

    @property
    def files(self) -> tuple[str, ...]:
        """The files that were asked for: those of `paths`, or those that lead to these by links or as their sources.

        Of chunks in files of their own: the folders with these.
        """
        if len(self.chunk_file):
            return self.asked
        files = self.asked or self.paths
        return tuple(files[number] for number in self.dataset_file.tolist()) if len(self.dataset_file) else files

    @property
    def first_of_files(self) -> NDArray[np.int64]:
        """The first sample of the dataset of each of `files`, and how many there are."""
        return self.dataset_first if len(self.dataset_file) else self.part_first

    @property
    def spread(self) -> bool:
        """Whether the rows of a dataset are those of others: it is virtual, or is kept in raw files."""
        return len(self.dataset_file) > 0 and not len(self.chunk_file)

    def name_in(self, file: int) -> str:
        """Returns the dataset's name in one of `paths`."""
        return self.names[file] if self.names else self.name

    @property
    def samples(self) -> int:
        """How many samples there are; a scalar dataset counts as one."""
        return self.shape[0] if self.shape else 1

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.shape[1:]

    @property
    def sample_nbytes(self) -> int:
        """The bytes of one sample in memory."""
        return math.prod(self.sample_shape) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all samples in memory."""
        return self.samples * self.sample_nbytes

    @property
    def spans(self) -> NDArray[np.int64]:
        """The bytes of each file among which its chunks' offsets are."""
        nbytes = self.file_nbytes.astype(np.int64)
        return nbytes if self.decoded is None else np.where(self.decoded.files, self.decoded.nbytes, nbytes)

    @property
    def far(self) -> bool:
        """Whether it lies elsewhere: its files are URLs."""
        return any(map(is_url, self.paths))

    @property
    def stays_encoded(self) -> bool:
        """Whether reading only checks its chunks, which are decoded elsewhere."""
        filters = [one.id for form in self.forms for one in form.filters]
        return bool(filters) and all(one == KEPT_ENCODED for one in filters)

    @property
    def stored_nbytes(self) -> int:
        """The bytes that the known chunks take in their files."""
        return int(self.chunk_nbytes.sum())

    def files_of_chunks(self, chunks: slice | NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns which of `paths` holds each of these chunks."""
        if len(self.chunk_file):
            return self.chunk_file[chunks]
        entries = np.arange(len(self.chunk_offset))[chunks]
        return self.part_file[np.searchsorted(self.part_chunks, entries, side="right") - 1]

    @property
    def swap(self) -> int:
        """How many bytes to reverse at a time for this machine's order; 0: none, or the values are not numbers."""
        base = self.dtype.base
        if base.isnative or base.kind not in "iufcmM":
            return 0
        return base.itemsize // 2 if base.kind == "c" else base.itemsize

    @cached_property
    def digest(self) -> str:
        """A hash that identifies these bytes: it changes with any path, size, time, chunk or type."""
        facts: tuple[Any, ...] = (
            self.name,
            self.paths,
            self.shape,
            repr(self.dtype),
            self.storage,
            self.reader,
            self.per_file,
        )
        if self.names and self.asked:  # else its own name says which it is
            facts += (self.names,)
        sha = hashlib.sha256(repr((facts, self.forms)).encode("utf-8", "surrogateescape"))
        of_files = (self.file_nbytes, self.file_mtime_ns, self.dataset_file, self.dataset_first)
        of_parts = (self.part_file, self.part_form, self.part_first, self.part_chunks)
        of_chunks = (self.chunk_index, self.chunk_offset, self.chunk_nbytes, self.chunk_mask, self.chunk_file)
        for array in of_files + of_parts + of_chunks:
            sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()


@dataclass(frozen=True, eq=False)
class DecodedChunks:
    """What a stage keeps of a Layout: of some files the chunks, decoded, one after another in whole blocks."""

    stored: Layout  # as it lies in its files
    files: NDArray[np.bool_]  # which of its `paths`
    begin: NDArray[np.uint64]  # where each chunk is, in what is kept of its file
    nbytes: NDArray[np.int64]  # that are kept of each file
    stage: tuple[str, int | None]  # the folder, and how many bytes may be used


@dataclass(frozen=True)
class Storage:
    """What reading from a storage costs: each byte takes bandwidth, each request its share of `iops`.

    `depth` requests are in flight at a time. That hides latency, but never iops. While the bytes of one request
    transfer, others are answered. One blocking stream has depth 1.

    >>> disks = Storage(latency=1e-3, bandwidth=1e9, iops=500)
    >>> disks.seconds(250, 1e9), disks.seconds(1000, 1e9)
    (1.0, 2.0)
    """

    latency: float  # seconds
    bandwidth: float  # bytes a second
    iops: float = math.inf  # requests a second
    depth: int = 32
    decode: float = math.inf  # bytes a second that come out of decoding chunks

    def __post_init__(self) -> None:
        rates = {"bandwidth": self.bandwidth, "iops": self.iops, "depth": self.depth, "decode": self.decode}
        for name, value in rates.items():
            if not value > 0:
                raise PlanError(f"{name}={value!r} of a storage: it must be above 0")
        if not 0 <= self.latency < math.inf or self.bandwidth == math.inf:
            raise PlanError(
                f"latency={self.latency!r}, bandwidth={self.bandwidth!r}: they must be finite, latency not below 0"
            )

    @property
    def request_seconds(self) -> float:
        """What one more request costs when `depth` are in flight."""
        return max(1 / self.iops, self.latency / self.depth)

    @property
    def gap(self) -> int:
        """The bytes that take as long as one more request. At first, reads include any smaller hole between them."""
        return int(self.bandwidth * self.request_seconds)

    def seconds(self, requests: float, nbytes: float, decoded: float = 0) -> float:
        """Returns the seconds for so many requests and bytes in total, and for decoding to `decoded` bytes.

        Requests and bytes proceed in parallel, so the slower of the two decides (docs/decisions/0020).
        """
        passing = nbytes / self.bandwidth
        in_turns = (requests * self.latency + passing) / self.depth
        return max(requests * self.request_seconds, passing, in_turns) + decoded / self.decode


@dataclass(frozen=True)
class RowPacking:
    """How a buffer may hold rows encoded without loss, as a trial on some of them says (io/reading/trial.py)."""

    number: str  # the type of their numbers: "u2", say
    predictor: str
    nbytes: int  # of a page of memory, which a row takes encoded
    lost: float  # share of the rows that take more, and are read again at each use
    encode: float  # bytes of rows a second, of all threads
    decode: float
    scratch: int  # bytes that a thread needs to encode a row


@dataclass(frozen=True)
class Outcome:
    """The cost of a keep policy per epoch, after the first, over all ranks."""

    reads: float  # samples read from the storage
    requests: float  # requests to the storage, after adjacent ones are joined
    bytes: float  # bytes read, including holes between samples
    scans: float  # its seconds, divided by the seconds of one sequential read of the whole data set
    seconds: float
    hits: float  # uses of samples already in memory: reads + hits = uses in an epoch
    peak_bytes: int  # the most that a node ever held


@dataclass(frozen=True, eq=False, repr=False)
class Script:
    """One epoch's plan: what each step uses, reads, keeps and drops. Samples are numbered as in the Layout.

    After step i - 1 is done, the reads of step i begin, in this order. Their samples are held from then on, and
    first used `ahead` steps later or after that. Only the first epoch of a Course has a start: groups of samples read
    before anything else, including the pinned part. Step start_due[g] needs group g; it may lie in a later epoch.
    """

    rows: NDArray[np.int32] | Listing  # every use, in order
    starts: NDArray[np.int64]  # where each step begins in rows, and where the last one ends
    last: NDArray[np.uint8]  # for each use: its row is dropped after this step; of a Listing: a bit for each
    loads: NDArray[np.int32]  # samples to read; for units held whole, the first sample of each
    ends: NDArray[np.int64]  # step i, from 1 to as many as there are, issues loads[ends[i - 1]:ends[i]]
    start: NDArray[np.int32]
    start_ends: NDArray[np.int64]  # where each group of the start ends
    start_due: NDArray[np.int64]


@dataclass(frozen=True)
class RunPart:
    """One field of one H5Dataset: where its samples go, and how what is read of it is kept."""

    field: int  # of the batch; parts of one field share its memory
    pages: int
    page: int  # bytes
    stored: bool  # kept as it is stored, and decoded at each use
    direct: bool  # nothing but what is pinned is kept
    ahead: int  # steps between the issue of a read and its use
    gap: int  # a smaller hole between two reads is read, too
    extents: RowWindows | None = None  # None: a sample is a row
    pack: tuple[str, str] | None = None  # type of its numbers and predictor, where a page is a row encoded


class BoxScript(NamedTuple):
    """The samples of such a stretch, where these are cut out of blocks: a Script is of the blocks that they touch.

    Ranks that read together have their own samples, and one Script.
    """

    samples: NDArray[np.int32]
    # Of one after another: its part, and where it begins along each axis there; or two runs of rows, each a first row
    # and a number of rows, and the row of the batch at which the sample begins (native/include/solar/boxes.hpp).
    corners: NDArray[np.int64]
    starts: NDArray[np.int64]  # where each batch begins among the samples, and the last one ends
    own: NDArray[np.int32] | None = None  # of each use of a block: below 0 where only other ranks touch it


class Turns(NamedTuple):
    """Ranks take the uses of a step in turns: use i goes to rank i % ranks, and has place i // ranks of its batch."""

    ranks: int
    rank: int  # whose batches they are


class PartScript(NamedTuple):
    """What an epoch, or another stretch of batches, is for one part."""

    script: Script
    # Of each use, or sample of several, in its batch; None: they are in order.
    positions: NDArray[np.int32] | Turns | None
    boxes: BoxScript | None = None
    # Nothing of what was planned before holds: the start stays or is read, all else goes. Then: direct, ahead, gap.
    afresh: tuple[bool, int, int] | None = None


class Transfers(NamedTuple):
    """What travels between ranks in a stretch of batches, whose steps are counted from 0.

    Fields that have samples of their own travel each in a letter of its own: those of a step are counted one by one.
    """

    sizes: NDArray[np.int64]  # rows of this rank's own batches
    sent: NDArray[np.int64]  # [n, 4] ascending by letter: letter, peer, and which rows of the memory: begin, end
    come: NDArray[np.int64]  # [m, 3] ascending by (letter, peer), as the sender has them: letter, peer, place
    letters: int = 1  # of a step: one has all fields, or one for each; so letter l is one of step l // letters


def batches_ahead(layouts: Iterable[Layout]) -> int:
    """Returns how many batches are read ahead by default: more if a request takes long."""
    return BATCHES_AHEAD_FROM_AFAR if any(layout.far for layout in layouts) else BATCHES_AHEAD
