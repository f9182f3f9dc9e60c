"""The native boundary: contiguous arrays of fixed dtype and plain numbers in, arrays out.

No call holds the GIL while it works.
"""

from collections.abc import Sequence
from typing import Any, TypedDict, overload

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
Filters = list[tuple[int, int, list[int]]]  # id, flags, values

class Dataset(TypedDict):
    """One dataset as its object header describes it (native/include/solar/metadata.hpp)."""

    name: str
    path: str  # the file that holds it, where links lead to another one
    target: str  # its path there without links, where that is another one
    problem: str
    elsewhere: str
    null_space: bool
    shape: list[int]
    maxshape: list[int]
    datatype: bytes
    itemsize: int
    storage: str  # "compact" "contiguous" "chunked" "external" "virtual"
    address: int
    nbytes: int
    chunk: list[int]
    index: str  # "" "btree1" "single" "implicit" "fixed_array" "extensible_array" "btree2"
    filters: Filters
    fill: bytes
    header_address: int
    file_nbytes: int  # of the file that holds it
    file_mtime_ns: int
    file_inode: int
    file_ctime_ns: int

class Metadata(TypedDict):
    nbytes: int  # of the file
    mtime_ns: int
    inode: int
    ctime_ns: int
    datasets: list[Dataset]
    linked: list[Dataset]  # what soft and external links lead to
    aliases: list[tuple[str, str, str]]  # groups that links lead to: name, file ("": this one), path there
    problems: list[str]

def exit_after_python() -> bool:
    """Has this process end, with status 1, as soon as Python has ended: what C libraries do at the end is left out."""

def read_metadata(path: str, name: str = "", most: int = ...) -> Metadata: ...
def read_metadata_of_many(paths: list[str], name: str, threads: int) -> list[Metadata]:
    """The same dataset of many files, in parallel; the first bad file (in order) is the error."""

def read_attributes(
    path: str, name: str, wanted: list[str], header_address: int = ...
) -> dict[str, tuple[bytes, int, bytes, str]]:
    """Those of these attributes that a dataset has: datatype, how many values, their bytes; or what is wrong with it.

    Where a slash ends the name it is that of a group. Of text of variable length the bytes are those of the text.
    """

def chunk_table(path: str, name: str, header_address: int = ..., found: U64 | None = ...) -> tuple[U64, U64, U64, U32]:
    """index, offset, nbytes, mask of every chunk that was written, by ascending index.

    With the header_address that read_metadata gave no group is read, however many datasets are in it.
    `found[0]` has the number of chunks found so far, for another thread to look at.
    """

GroupColumn = tuple[list[Dataset], I32, int, U64, I64, U64, U64, U64, U32]

def read_groups(
    path: str, pattern: str, wanted: list[str]
) -> tuple[bytes, U64, list[GroupColumn], tuple[int, int, int, int]]:
    """The groups whose names fit the pattern (empty: all that have the datasets), in order of name.

    Their names and where each begins; of each dataset its kinds, each group's kind, the number of axes, shapes, where
    each group's chunks begin, and index, offset, nbytes, mask of these; and the file's identity: bytes, mtime_ns,
    inode, ctime_ns.
    """

def varying_places(path: str, references: U8, itemsize: int) -> tuple[U64, U64, tuple[int, int, int, int]]:
    """Where the values of each sample of HDF5's variable-length type lie, and how many; and the file's identity.

    `references`: what the dataset holds for its samples, one after another, as bytes.
    """

def filter_name(id: int) -> str: ...
def zarr_filters() -> tuple[int, int, int]:
    """Our numbers for gzip and crc32c, which no HDF5 file has."""

def unsupported(filters: Filters, itemsize: int) -> str: ...
def decode(filters: Filters, itemsize: int, nbytes: int, mask: int, stored: bytes) -> bytes: ...

class Source:
    def __init__(
        self,
        name: str,
        paths: list[str],
        file_nbytes: U64,
        file_mtime_ns: I64,
        itemsize: int,
        swap: int,
        row_shape: list[int],
        forms: list[tuple[list[int], Filters, bytes]],  # chunk shape, filters, fill
        part_file: I32,
        part_form: I32,
        part_first: I64,
        part_chunks: I64,
        chunk_index: U64,  # empty: entry k of a part is chunk k
        chunk_offset: U64,
        chunk_nbytes: U64,
        chunk_mask: U32,
        bypass: float = 0.0,  # share that is read past the page cache
        mapped: bool = False,  # copied from mapped files while the page cache holds them
        file_inode: U64 | None = None,  # None or empty, with file_ctime_ns: not known
        file_ctime_ns: I64 | None = None,
        form_nbytes: list[
            int
        ] = ...,  # that chunks decode to whose last row is not whole; 0: as many as their shape has
        unit: str = "sample",  # what a row of it is, for messages
        chunk_file: I32 | None = None,  # of each chunk; None or empty: the file of its part
        # Empty, or for each file: None, or what its offsets mean, and the stage that keeps it, if there is one.
        decoded: Sequence[tuple[DecodedFile, Stage | None] | None] = ...,
    ) -> None: ...
    @property
    def row_nbytes(self) -> int: ...

class Stage:
    """The bytes of one far file that lie on a local disk (native/include/solar/stage.hpp)."""

    def __init__(self, path: str, token: bytes, nbytes: int) -> None: ...
    @property
    def lost(self) -> int: ...  # errno: why it is no longer read
    @property
    def stopped(self) -> int: ...  # errno: why it is no longer written to
    @property
    def dropped(self) -> int: ...  # blocks that were not what had been written

class DecodedFile:
    """The chunks of a file, decoded, one after another (native/include/solar/decoded.hpp)."""

    def __init__(
        self,
        nbytes: int,
        forms: list[tuple[Filters, int, int, int]],  # filters; bytes of an element, decoded, and of their blocks
        begin: U64,
        offset: U64,
        stored: U64,
        mask: U32,
        form: I32,
        file_nbytes: int,
    ) -> None: ...

# Files that lie elsewhere (native/include/solar/far.hpp): orders, and what becomes of them.
FarIdentity = tuple[int, int, int, int]

def far_look(url: str) -> FarIdentity: ...
def far_read(url: str, was: FarIdentity, offset: int, nbytes: int) -> bytes: ...
def far_begin(most_under_way: int) -> None: ...
def far_end() -> None: ...
def far_forget() -> None: ...
def far_take() -> tuple[int, str, int, int, FarIdentity] | None: ...
def far_short_of_threads() -> bool: ...
def far_give(number: int, bytes: NDArray[np.uint8]) -> None: ...
def far_is(number: int, nbytes: int, mtime_ns: int, inode: int, ctime_ns: int) -> None: ...
def far_refuse(number: int, code: int, why: str) -> None: ...
def staged(source: Source, files: Sequence[tuple[Stage, int] | None]) -> Source: ...  # each with its limit, in blocks

class Boxes:
    """Samples cut out of blocks, which are the rows of a source (native/include/solar/boxes.hpp).

    They are boxes of volumes, or of blocks of rows runs of these.
    """

    @overload
    def __init__(
        self, source: Source, block: Sequence[int], box: Sequence[int], shape: Sequence[int], lengths: Sequence[int]
    ) -> None: ...
    @overload
    def __init__(self, source: Source) -> None: ...
    def put_together(self, corners: I64, places: I64, rows: I32, blocks: U8, out: U8) -> None:
        """Puts boxes into their places in `out`, of the blocks of these rows, which ascend."""

class Reader:
    def __init__(
        self,
        threads: int,
        depth: int,
        gap: int,
        backend: str,  # "auto" "pread" "uring"
        scratch: int = ...,  # bytes that a thread may have beside for what is on its way
    ) -> None: ...
    def submit(
        self,
        source: Source,
        rows: I64,
        out: NDArray[Any],
        positions: I64 | None = None,
        counts: I64 | None = None,
    ) -> int:
        """A ticket for the rows: row i goes to slot i of `out`, or to slot positions[i] (then `out` may have more).

        With counts these are extents: counts[i] rows from rows[i] on go to as many slots.
        """

    def submit_boxes(
        self, boxes: Boxes, samples: I64, corners: I64, out: NDArray[Any], positions: I64 | None = None
    ) -> int:
        """A ticket for the boxes at these corners: of each its part, and where it begins along each axis."""

    def lend(self, ticket: int, out: NDArray[Any]) -> None: ...
    def wait(self, ticket: int, seconds: float) -> tuple[int, ...] | None:
        """The ticket's own counts, in the order of count_names(), once its rows are there; None after `seconds`.

        Over all tickets they add up to stats(). Those of a ticket that ends in an error are in stats() only.
        """

    def waiting_for(self, ticket: int) -> str:
        """What a ticket waits for: "file: dataset, sample 17, offset 123"; empty when for nothing."""

    def progress(self, last: int) -> tuple[int, int]:
        """How many pieces of the tickets up to this one are done, of all there ever were, and how many there are."""

    def abandon(self, ticket: int) -> None:
        """Gives up a ticket: what has not begun is dropped, its output let go once no thread writes to it."""

    def close(self, seconds: float = ...) -> bool:
        """Ends the threads; false when `seconds` passed first, for a read that does not return.

        The threads and the outputs they may yet write to are then left as they are, also when the Reader goes.
        """

    @property
    def backend(self) -> str: ...
    @property
    def opened(self) -> int: ...
    @property
    def wakes(self) -> int: ...
    def stats(self) -> dict[str, int]: ...

def check_unchanged(
    paths: list[str],
    file_nbytes: U64,
    file_mtime_ns: I64,
    file_inode: U64,
    file_ctime_ns: I64,
    gone: bool,
    threads: int,
) -> None:
    """ReadError for the first file that is another now than these say; or, where `gone`, that is there no more."""

def count_names() -> tuple[str, ...]:
    """What a Reader counts: rows, requests, stretches, buffer_hits, bypassed, bytes_read, bytes_mapped, ..."""

def take(nbytes: int) -> U8:
    """Batch memory from the pool; goes back to it when the array and all its views are gone."""

def pool_stats() -> dict[str, int]: ...  # in_use, idle: bytes
def pool_nbytes(address: int) -> int:
    """How large the memory of the pool is that is in use around an address; 0: it is none."""

def pool_adopt(address: int, nbytes: int) -> None:
    """Has the pool hand out this memory, before its own of that size, until `pool_disown`."""

def pool_disown(address: int) -> bool:
    """Whether it is not the pool's any more; it is while it is in use, and then no longer: ask again."""

def convert(
    source: NDArray[Any],
    out: NDArray[Any],
    mean: NDArray[Any] | None = None,
    std: NDArray[Any] | None = None,
    packing: tuple[bool, bool, tuple[float, ...], float | None, float | None, float | None] | None = None,
) -> None:
    """Writes (source - mean) / std into `out`, in its type: float32 or float64, or with nothing else its own.

    The source may have any strides and be unaligned; mean and std, of the type of `out`, broadcast against it. All
    but the source are contiguous, and `out` shares no memory with the others. An `out` of structures of one uint16
    called bfloat16 is that, worked out in float32, which mean and std then are.
    `packing`: what is done before, in float64 or else in float32; whether each step is in float64; what is missing;
    scale and offset; and what at last takes the place of NaN (Packing in native/include/solar/convert.hpp).
    """

def randperm(n: int, seed: int, skipped: int = 0) -> I32:
    """torch.randperm(n) of a CPU generator seeded so, after it gave `skipped` 32-bit numbers."""

def randperm_draws(n: int) -> int: ...
def select(order: I32, starts: I64, begin: int, end: int) -> tuple[I32, I64]:
    """The uses of the items in [begin, end), counted from begin, and where each step begins among them."""

def merge_ranges(first: I64, last: I64, starts: I64, items: int) -> tuple[I32, I64]:
    """The items of ranges, each once a step and ascending, and where each step begins among them."""

def assign(order: I32, starts: I64, homes: I64, ranks_per_node: int) -> I32:
    """The rank that takes each use, when all get equal shares of each step; its home where that has room."""

def alias_table(weights: NDArray[np.float64]) -> U64:
    """For draws by these weights: a slot of 8 bytes for each sample (native/include/solar/order.hpp)."""

def draw_by(table: U64, seed: int, epoch: int, begin: int, count: int) -> I64:
    """The samples at these positions of an epoch, drawn with replacement."""

def shuffled(seed: int, size: int, begin: int, count: int) -> I64:
    """Turns of a source of so many samples: each comes once, in an order of chance, before any comes twice."""

def shuffled_of(seed: int, sources: I32, turns: I64, sizes: I64, firsts: I64) -> I64:
    """The same for turns of many sources; `firsts` is added to the place in each."""

def study_order(samples: int, study: int, seed: int, epoch: int, length: int) -> I32:
    """torch's shuffle by the study and epoch; of that each stretch of so many places shuffled by the seed."""

def mixed(shares: I64, length: int, seed: int) -> I32:
    """Which source comes at each position, so that each always has had its share, within one."""

def seeds(words: U32, numbers: I64) -> U64:
    """What numpy's SeedSequence([*words, number]).generate_state(2, uint64) is for each number, one after another."""

PlanCounts = tuple[int, int, int, int, int, int, int]  # in the order of solar.planning.sweep.Counts

class Units:
    def __init__(
        self,
        items: int,
        per_unit: int,
        stored: int,
        held: int,  # bytes of an item in memory; 0: those of its unit, by `weight` or else as they are stored
        first: I64 | None = None,
        offset: I64 | None = None,
        nbytes: I64 | None = None,
        weight: I64 | None = None,
        chunk_first: I64 | None = None,  # of units of several chunks
        chunk_offset: I64 | None = None,
        chunk_nbytes: I64 | None = None,
    ) -> None: ...
    @property
    def items(self) -> int: ...

class Sweep:
    """The read head's way, worked out from the last step back to the first (native/include/solar/plan.hpp)."""

    def __init__(self, units: Units, room: int, burst: int, ahead: int, gap: int, lasting: bool = False) -> None: ...
    def back(
        self, items: I32, starts: I64, record: bool = False, goes_on: bool = False
    ) -> tuple[PlanCounts, tuple[I32, I64, U8] | None]:
        """Goes back over the steps before those seen: counts, and a record of loads, their ends per step, last uses.

        It `goes_on` where they are of the same epoch.
        """

    def residents(self) -> tuple[PlanCounts, I32]: ...
    def copy(self) -> Sweep: ...

def direct(units: Units, items: I32, starts: I64, gap: int) -> PlanCounts: ...

# Of a part: rows, positions, starts, last, loads, ends, start, start_ends, start_due (native/include/solar/run.hpp).
Boxed = tuple[I32, I64, I64, I32 | None]
Placed = I32 | tuple[int, int] | None
PartEpoch = tuple[I32, Placed, I64, U8, I32, I64, I32, I64, I64, Boxed | None, tuple[bool, int, int] | None]

class SharedPool:
    """Memory for batches that other processes may map read-only (native/include/solar/serve.hpp)."""

    def __init__(self, nbytes: int) -> None: ...
    @property
    def descriptor(self) -> int: ...
    @property
    def in_use(self) -> int: ...
    @property
    def waited(self) -> float:
        """For how many seconds a batch has waited for room by now; 0: none does."""

    def use(self, nbytes: int) -> None:
        """No more of it than these first bytes is used for what is taken from now on."""

    def offset(self, array: U8) -> int: ...
    def close(self) -> None:
        """Nobody waits for room any more, or gets any."""

class Ledger:
    """What a service tells one job: where its batches lie."""

    def __init__(self, entries: int, fields: int, most: int) -> None: ...
    @property
    def descriptor(self) -> int: ...
    @property
    def line(self) -> int:
        """The descriptor of what the job tells."""

    @property
    def made(self) -> int: ...
    @property
    def waits(self) -> int: ...
    @property
    def waited(self) -> float: ...
    def announce(self, number: int, offsets: list[int], places: NDArray[np.uint32], samples: int) -> None: ...
    def gone(self, number: int) -> None: ...

class Guest:
    """The job's side of a Ledger."""

    def __init__(self, ledger: int, line: int, pool: int, bell: int, fields: list[list[int]], most: int) -> None: ...
    def wait(self, number: int, seconds: float) -> bool: ...
    def copy(self, number: int, samples: int, out: list[U8], each: Sequence[int] = ()) -> str:
        """ "here", "not held" or "gone". With `each`, a field has so many samples of its own."""

    def wants(self, number: int) -> None: ...
    def has_made(self, number: int) -> None: ...
    def is_gone(self, number: int) -> bool: ...
    @property
    def there(self) -> int: ...

def make_node(ranks: int, nbytes: int) -> int:
    """The descriptor of anonymous memory that so many processes share, for the one that makes it."""

class Node:
    """Shared memory of the processes of one node, and how far each of them has come (native/include/solar/node.hpp)."""

    def __init__(self, descriptor: int, rank: int, names: list[str], nbytes: int) -> None: ...
    def joined(self, seconds: float) -> bool:
        """Whether all have come; false when `seconds` passed first. Raises where one has failed, left or died."""

    def missing(self) -> list[str]:
        """The names of those that have not come yet."""

    def fail(self, why: str) -> None:
        """Tells all who wait for this one why they wait in vain."""

    def leave(self) -> None:
        """This one looks at the memory no more: those who wait for it get an error."""

class Extents:
    """Which rows samples are made of: solar/samples/row_windows.py has the words (native/include/solar/extents.hpp)."""

    def __init__(self, first: I64, anchor: I64, low: I64, high: I64, every: int, steps: I64, sizes: I64) -> None: ...

def requests_of(source: Source, rows: NDArray[np.int64], out: NDArray[np.uint8], threads: int) -> tuple[int, int]: ...

class Asked:
    """The requests that a Run would make for a part, with nothing read."""

    def __init__(
        self,
        reader: Reader,
        scratch: int,
        source: Source,
        pages: int,
        page: int,
        stored: bool,
        direct: bool,
        ahead: int,
        gap: int,
        extents: Extents | None = None,
        boxes: Boxes | None = None,
        pack: tuple[str, str] | None = None,
    ) -> None: ...
    def epoch(self, sizes: NDArray[np.int64], epoch: tuple[Any, ...]) -> tuple[int, int]: ...

class ReadAhead:
    """Reads batches whose rows are named one batch at a time, for whoever takes them."""

    def __init__(self, reader: Reader, fields: list[Source]) -> None: ...
    def begin(self, rows: NDArray[np.int64]) -> None: ...
    def begin_each(self, rows_of_fields: list[NDArray[np.int64]]) -> None: ...
    def take(self, seconds: float) -> tuple[list[NDArray[np.uint8]], tuple[int, ...]] | None: ...
    def oldest(self) -> list[int]: ...
    def leave(self) -> list[tuple[list[NDArray[np.uint8]], list[int], tuple[int, ...]]]: ...

class Device:
    """What copying to a CUDA device needs of its driver."""

    def __init__(self, library: str, number: int) -> None: ...
    @property
    def pinned(self) -> int: ...

class Conversion:
    """What is done with the samples of every batch (native/include/solar/convert.hpp)."""

def conversion(
    batch: NDArray[Any],
    source: NDArray[Any],
    out: NDArray[Any],
    mean: NDArray[Any] | None,
    std: NDArray[Any] | None,
    packing: tuple[bool, bool, tuple[float, ...], float | None, float | None, float | None] | None,
) -> Conversion:
    """What `convert` does, for batches of any size: `batch` has one sample, and `source` and `out` are its views."""

class Converter:
    """Has the fields of batches converted by the reader's threads, some batches ahead of who takes them."""

    def __init__(self, reader: Reader, batches: Run | ReadAhead, conversions: Sequence[Conversion | None]) -> None: ...
    def begin(self) -> None: ...
    def take(self, seconds: float) -> tuple[list[NDArray[np.uint8]], tuple[int, ...]] | None: ...
    def waited_ns(self) -> int: ...
    def stop(self) -> list[tuple[list[NDArray[np.uint8]], tuple[int, ...]]]: ...
    def failed(self) -> None: ...

class Lander:
    """Copies batches to a device, each as soon as it is made."""

    def __init__(self, device: Device, stream: int, batches: Run | ReadAhead, most: int) -> None: ...
    def begin(self, target: list[tuple[int, int]]) -> None: ...
    def take(self, seconds: float, stream: int) -> tuple[int, ...] | None: ...
    def copying(self) -> bool: ...
    def copied_ns(self) -> int: ...
    def stop(self) -> list[tuple[list[NDArray[np.uint8]], tuple[int, ...]]]: ...
    def failed(self) -> None: ...

class Run:
    """Carries out plans with buffers of hard size, and puts batches together ahead of whoever takes them."""

    def __init__(
        self,
        reader: Reader,
        staged: int,
        scratch: int,
        node: Node | None = None,
        lends: int = 0,
        pool: SharedPool | None = None,
        passed_on: bool = False,
    ) -> None: ...
    def part(
        self,
        source: Source,
        field: int,
        pages: int,
        page: int,
        stored: bool,
        direct: bool,
        ahead: int,
        gap: int,
        extents: Extents | None = None,
        boxes: Boxes | None = None,
        pack: tuple[str, str] | None = None,
    ) -> int:
        """Adds rows of a source, or samples of them, with a buffer of so many pages. Gives the part's number.

        With `pack`, the type of the numbers ("u2", say) and a predictor, a page has its row encoded.
        """

    def append(self, sizes: I64, parts: list[PartEpoch]) -> None:
        """The next epoch, of every part; `sizes` has the samples of each batch. Keeps the arrays."""

    def take(self, seconds: float) -> tuple[list[U8], tuple[int, ...]] | None:
        """The bytes of the next batch's fields, and what was read since the one before; None after `seconds`."""

    def ask(self, number: int) -> None:
        """Somebody waits for this batch, and keeps those before it. For batches that are `passed_on`."""

    def retire(self) -> None: ...
    def waiting_for(self) -> str:
        """What the next batch waits for: "file: dataset, sample 17, offset 123", or ranks; empty when for nothing."""

    def due(self) -> int:
        """The last ticket of the Reader that the batch being made waits for; 0: it waits for none yet."""

    def counts(self) -> dict[str, int]:
        """What was done: steps, reads, hits, requests, bytes, held_bytes, peak_bytes, recovered, stall_ns."""

    def close(self, seconds: float) -> bool:
        """Gives up what is on its way; false when `seconds` passed first, for a read that does not return."""

def pack_scratch(row_nbytes: int, itemsize: int) -> int:
    """The bytes that encoding such a row for a Run takes beside the row itself, at most."""

def codec_filter() -> int:
    """The HDF5 filter's number of the bounded codec."""

def codec_paths() -> tuple[str, ...]:
    """The ways this machine can decode: "plain", "avx2", "avx512", "neon"; the fastest last."""

def encode(
    array: NDArray[Any],
    bound: float,
    coder: str = "auto",
    predictor: str = "auto",
    tables: bytes = b"",
    marks: bytes = b"",
    limits: bytes = b"",
) -> bytes:
    """A chunk in which every value is within `bound` (0: bit for bit).

    `marks` come back bit for bit, and nothing else becomes one; `limits` are not crossed. Bytes of the array's type.
    """

def decode_into(stored: bytes, out: NDArray[Any], tables: bytes = b"", path: str = "") -> None:
    """Fills `out`, of the chunk's own type, or float16 of a chunk of float32."""

def decode_many(stored: list[bytes], out: NDArray[Any], tables: bytes = b"", path: str = "") -> None:
    """The same of several chunks of one size, one after another."""

def train(
    arrays: list[NDArray[Any]], bound: float, predictor: str = "auto", marks: bytes = b"", limits: bytes = b""
) -> bytes: ...
def client_data(tables: bytes) -> list[int]: ...
def describe_codec(stored: bytes) -> dict[str, Any]: ...
def check_chunks(rows: U8, lengths: I64, like: NDArray[Any], nbytes: int, tables: bytes = b"") -> U8:
    """Checks a chunk a row without decoding it; where each one's tables are: 0 none, 1 inside, 2 built in, 3 `tables`.

    Each must hold `nbytes` bytes of numbers of the type of `like`.
    """

def codec_places(tables: bytes = b"") -> U32:
    """17 x 1024 places of the tables, or of the built-in ones: symbol 8 bits, width 8, base 16."""

def compare(original: NDArray[Any], restored: NDArray[Any], bound: float) -> tuple[int, int, float]:
    """How many values are beyond the bound, the first of them, and the largest difference; without the codec."""
