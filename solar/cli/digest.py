"""Prints a digest of all batches of an epoch: of their bits, and of the order in which they come."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from solar.cli import argument_types, mixed, sample_arguments, words
from solar.errors import PlanError
from solar.io.channels.progress import awaited
from solar.io.channels.world import detect

DETAILS = """\
Two epochs have the same digest where each step of one has the bytes of its turn in the other: whatever the threads, the
buffer, the storage and the codec that it was read with, and whether or not it was broken off and gone on with. Ranks
that make a step together have the digest of one process that makes it alone: --ranks 4 --batch-size 16 gives what
--batch-size 64 does where that divides the samples evenly. All ranks are played by this one process.
An epoch is what DataLoader(H5Dataset(FILE, ...), B, sampler=PlanSampler(seed=SEED)) gives on these ranks, with --order
mixed what PlanSampler(seed=SEED, order="mixed", block=SIZE, window=SIZE) does.
It reads all samples, and stops at the first that cannot be read.

keys of --json: version (1), file, datasets, ranks, batch, seed, epochs ([{epoch, steps, samples, bytes, digest}])
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="an HDF5 file, a directory of them, or a quoted glob pattern")
    add("dataset", metavar="DATASET", nargs="*", help="the fields of a sample; else those as long as the largest one")
    add(
        "--batch-size",
        metavar="B",
        type=argument_types.count_argument,
        help="samples of a batch on each rank (must be given)",
    )
    add("--epochs", metavar="E", type=argument_types.count_argument, default=1, help="how many are read (1)")
    add("--ranks", metavar="W", type=argument_types.ranks, default=1, help="processes among which they are divided (1)")
    add("--seed", metavar="SEED", type=argument_types.seed, default=0, help="of the shuffles (0)")
    add("--drop-last", action="store_true", help="leaves out what does not fill a batch of each rank")
    add("--buffer", metavar="SIZE", help="memory, 8GiB or 25%%; 0: none (what is best); of each rank")
    add("--json", action="store_true", help="for programs: one JSON object")
    sample_arguments.add_arguments(parser, mixed.WindowOrSteps)
    mixed.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    world = detect()
    if world.ranks > 1:
        if world.rank:
            return 1  # rank 0 says why
        raise PlanError(
            f"one process plays all ranks of a digest, and {world.ranks} were started: give --ranks {world.ranks} "
            "without the launcher"
        )
    if arguments.batch_size is None:
        raise PlanError("how many samples make a batch? Give --batch-size B: a digest is of batches, and depends on it")
    names = _split_batches(arguments)
    found = list(digest_epochs(arguments, names))
    if arguments.json:
        facts = {"version": 1, "file": arguments.file, "datasets": names, "ranks": arguments.ranks}
        print(json.dumps(facts | {"batch": arguments.batch_size, "seed": arguments.seed, "epochs": found}, indent=1))
    else:
        for one in found:
            totals = f"{one['steps']:,} steps, {one['samples']:,} samples, {one['bytes']:,} bytes"
            print(f"{one['digest']}  epoch {one['epoch']}: {totals}")
    return 0


def _split_batches(arguments: argparse.Namespace) -> list[str]:
    """Returns the fields that torch can batch. Named ones must be such."""
    from solar.cli.plan import fields_asked  # only here, as torch: `solar --help` is quick

    if sample_arguments.unequal(arguments):
        return sample_arguments.named_datasets(arguments)
    layouts = fields_asked(arguments)
    others = [
        name
        for name, one in layouts.items()
        if not words.is_number(one.dtype) and not words.kind(one.dtype).startswith("text")
    ]
    if others and (arguments.dataset or len(others) == len(layouts)):
        what = f"{arguments.file}: {others[0]} holds {words.kind(layouts[others[0]].dtype)}"
        raise PlanError(f"{what}, and neither numbers nor text: name another DATASET; `solar inspect` lists them")
    return [name for name in layouts if name not in others]


def digest_epochs(arguments: argparse.Namespace, names: list[str]) -> Iterator[dict[str, Any]]:
    from solar import DataLoader, H5Dataset, PlanSampler

    fields, samples = sample_arguments.fields(arguments, names)
    fields |= sample_arguments.flat(arguments)  # where torch makes nested tensors, it warns in its own words
    data = H5Dataset(arguments.file, fields, samples=samples, where=arguments.where)
    order = mixed.sampler_options(arguments)
    options = {"buffer": arguments.buffer, "epochs": arguments.epochs, "exchange": "off"}
    loaders = []
    for rank in range(arguments.ranks):
        sampler = PlanSampler(data, arguments.ranks, rank, seed=arguments.seed, drop_last=arguments.drop_last, **order)
        size = arguments.batch_size
        loaders.append(DataLoader(data, size, sampler=sampler, drop_last=arguments.drop_last, **options))
    try:
        for epoch in range(arguments.epochs):
            for loader in loaders:
                loader.set_epoch(epoch)
            digest = Digest()
            with awaited(f"reading epoch {epoch}", partial(getattr, digest, "steps"), len(loaders[0]), "steps"):
                for batches in zip(*loaders, strict=True):
                    digest.add(batches)
            yield {"epoch": epoch, **digest.found()}
    finally:
        for loader in loaders:
            loader.close()


class Digest:
    """The SHA-256 of an epoch's steps: for each the fields in order, with their names, types and shapes."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self.steps = self._samples = self._nbytes = 0

    def add(self, batches: Sequence[Mapping[str, Any]]) -> None:
        """Adds a step: the batch of each rank, with tensors or lists of text under the names of the fields."""
        self.steps += 1
        for name in batches[0]:
            values = _dealt_back([_apart(batch[name]) for batch in batches])
            facts, contents = _in_bytes(values)
            self._sha.update(json.dumps([name, *facts]).encode())
            for content in contents:
                self._sha.update(content)
                self._nbytes += len(content)
        self._samples += len(values)

    def found(self) -> dict[str, Any]:
        """Returns counts, and the digest as hexadecimal digits."""
        counts = {"steps": self.steps, "samples": self._samples, "bytes": self._nbytes}
        return counts | {"digest": self._sha.hexdigest()}


def _apart(values: Any) -> Any:
    """Returns the samples of a batch, each a list of tensors, if they differ in length; else the batch."""
    if isinstance(values, tuple):
        rows, ends = values
        return [[rows[begin:end]] for begin, end in pairwise(ends.tolist())]
    if str(getattr(values, "layout", "")) != "torch.sparse_csr":
        return values
    parts = values.col_indices(), values.values()
    return [[part[begin:end] for part in parts] for begin, end in pairwise(values.crow_indices().tolist())]


def _in_bytes(values: Any) -> tuple[list[Any], list[bytes]]:
    """Returns the values of a field in a step: a description, and bytes."""
    if not isinstance(values, list):
        return [str(values.dtype), *values.shape], [values.contiguous().numpy().tobytes()]
    if values and isinstance(values[0], list):
        facts = [[str(part.dtype), *part.shape] for sample in values for part in sample]
        return ["unequal", *facts], [part.contiguous().numpy().tobytes() for sample in values for part in sample]
    return ["text", len(values)], [repr(values).encode()]


def _dealt_back(parts: list[Any]) -> Any:
    """Returns the samples of a step in the order in which they were dealt to the ranks, one to each in turn."""
    whole = parts[0]
    if len(parts) > 1:
        count = sum(map(len, parts))
        whole = [None] * count if isinstance(whole, list) else whole.new_empty((count, *whole.shape[1:]))
        for rank, part in enumerate(parts):
            whole[rank :: len(parts)] = part
    return whole
