"""Shows what an epoch would cost by each policy: PyTorch's, caches, the published SOLAR's, and ours."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from solar.cli import argument_types, jobs, mixed, planned, sample_arguments
from solar.cli.compare import (
    Answer,
    PlannedData,
    SampleDraw,
    as_made,
    compare_policies,
    guessed_seconds,
    job_of,
    scratch_of,
)
from solar.cli.python_lines import once_each
from solar.errors import PlanError
from solar.io.channels.progress import Phase, awaited, showing
from solar.io.hdf5.layouts import inspect, survey
from solar.io.hdf5.paths import files_of
from solar.io.reading.decoded_stage import decoded_nbytes
from solar.io.reading.engine import ROOM
from solar.io.reading.reader import read
from solar.io.reading.run import scratch_nbytes
from solar.io.reading.trial import on_cores, try_packing
from solar.io.system import memory as machine
from solar.io.system import profile, quantities
from solar.io.system.cores import planned_threads
from solar.planning.budget import BufferTooSmall
from solar.planning.job import Job
from solar.planning.units import Units, not_carried, of_layout, uniform
from solar.samplers.orders import checked_weights
from solar.samples.protocol import HeldMap
from solar.values import Layout, Storage, World, batches_ahead, is_url

DETAILS = """\
Sizes are written 8GiB, 64k (of 1024) or 100MB (of 1000), times 2ms, rates 1GB/s, counts 10M.
Without --profile, --latency, --bandwidth or --iops: the profile that `solar probe` stored for the file's storage, or
else a guess by the kind of its file system; without a FILE 2 ms, 1 GB/s and 500 requests/s, a parallel file system on
disks. All times are modelled for that storage, with nothing of the data in the page cache.

With --jobs K trainings of one process each read the same data side by side, step by step: each alone with SIZE / K of
memory, as loaders do today; each alone, sample by sample, over one page cache of SIZE; and together, with one memory of
SIZE, from which a service takes what steps on their way need first.

The row of solar is the plan that DataLoader(H5Dataset(FILE, ...), B, sampler=PlanSampler(), buffer=SIZE, epochs=E)
makes for this storage, and its run reads just that. A request is a stretch of storage, however long; of files by URL,
read by one process, it is one that the server is asked. With --weights it is PlanSampler(weights=NAME), with --mixture
PlanSampler(Mixture({...: (H5Dataset(FILE, ...), SHARE), ...})), with --order mixed PlanSampler(order="mixed",
block=SIZE, window=SIZE). Then a table has what several windows read, and how random they are, beside the exact shuffle,
and the window that is advised; without --window the plan is of that one, and the others' rows are of exact shuffles.
With windows, boxes, samples of unequal length, masks, fields of other files and mixtures the others' rows are left out;
beside ours is what reading each batch by itself costs, without a buffer. With --crop it is the plan of H5Dataset(FILE,
..., samples=Crops(SHAPE, ...)), with --axis of Field(NAME, axis=AXES), with --groups of samples="groups", with --ragged
and --csr of fields Ragged(NAME, ...) and CSR(NAME). These count whole chunks, or blocks of contiguous data. With
--where it is that of H5Dataset(FILE, ..., where=DATASET), with --beside of Field(DATASET, file=FILE, by=KEYS).

keys of --json: version (1), samples, nbytes, ranks, ranks_per_node, batch, memory, ahead, epochs, seed, weights (null:
  each sample comes once), mixture ({FILE: SHARE}, or null), storage
  ({latency, bandwidth, iops, decode (null: nothing is decoded), depth, gap, from}), datasets, policies ({torch, lru,
  pinned, solar_paper, solar}, or of samples that are no rows {one_by_one, solar}, each {reads, requests, bytes, scans,
  seconds, hits, peak_bytes}, per epoch, once it is under way), first_epoch (the same of solar's first), buffer
  ({samples, batches, scratch: bytes on a node, ready: batches; null: there is none}), packed (that it holds samples
  encoded without loss, and how much smaller; else ""), no_buffer (why), planned ({epochs, nodes}: how many were worked
  out; others are taken to be alike), first_batch_seconds (of each),
  estimated (policies that were followed on a smaller copy), plan_seconds (of one epoch on the first node),
  overflow_fraction (samples that another rank takes than the one that reads them), travel ({steps, samples, nbytes,
  most_nbytes}: what goes from node to node in an epoch, and what one node receives in a step at most), compute_seconds,
  load ({seconds, requests, bytes}: of our epoch with its computing, and of the storage per second of it),
  stage (with --stage: {nbytes, first_epoch, later_epochs, all: bytes that are read from afar}, or null),
  stage_decoded (bytes of a stage that keeps all chunks decoded; 0: none are to be decoded),
  mixed (with --order: {block, window, chunk, study}, as far as it has them, or null),
  fits_page_cache (the FILE's data do, on this machine: once they are there, no storage is waited for)
keys that --order adds: block, chunk (samples; 1 where no chunks are alike), largest_window (that memory has room for;
  0: without memory), windows (the exact shuffle, window null, and others: each {window, reads, ..., regions, apart,
  again}), keep (--spread), advised (the window, or null), gains (whether any is faster than the exact shuffle)
keys that --jobs adds: jobs, order ("own", "study", "common"), stretch (of the study: a share of an epoch, or null),
  per_job (of each policy {requests, bytes, scans, seconds} of one job), decoded (of each policy: samples that come out
  of chunks), limit (of each: "requests", "bytes" or "decoding" takes the time; "": nothing is read). Then policies are
  {alone, page_cache (not of windows, boxes and mixtures), solar}, each of an epoch of all jobs together, and
  first_batch_seconds is empty.
"""

ASSUMED = profile.NETWORK  # where there is no file yet


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", nargs="?", help="an HDF5 file, a directory of them, or a quoted glob pattern")
    add("dataset", metavar="DATASET", nargs="*", help="the fields of a sample; else those as long as the largest one")
    made = parser.add_argument_group("instead of a file")
    made.add_argument("--samples", metavar="N", type=argument_types.count_argument, help="how many samples there are")
    made.add_argument("--sample-bytes", metavar="SIZE", type=argument_types.size_argument, help="of one sample")
    made.add_argument(
        "--samples-per-chunk", metavar="K", type=argument_types.count_argument, default=1, help="read together (1)"
    )
    sample_arguments.add_arguments(parser, mixed.WindowOrSteps)
    argument_types.add_arguments(parser)
    mixed.add_arguments(parser, advising=True)
    run = parser.add_argument_group("the training")
    run.add_argument("--ranks", metavar="W", type=argument_types.ranks, default=1, help="processes in all (1)")
    run.add_argument(
        "--ranks-per-node", metavar="R", type=argument_types.count_argument, help="of these on one node (all)"
    )
    run.add_argument(
        "--batch-size", metavar="B", type=argument_types.count_argument, default=64, help="samples per rank (64)"
    )
    run.add_argument(
        "--memory", metavar="SIZE", type=argument_types.size_argument, help="buffer of each node (must be given)"
    )
    run.add_argument(
        "--ahead", metavar="N", type=argument_types.count_argument, help="batches ready (4, of files by URL 64)"
    )
    run.add_argument(
        "--epochs", metavar="E", type=argument_types.count_argument, default=3, help="how many there will be (3)"
    )
    run.add_argument(
        "--compute",
        metavar="TIME",
        type=argument_types.seconds_argument,
        default=0.0,
        help="of a step, beside reading (0)",
    )
    run.add_argument(
        "--weights",
        metavar="NAME",
        help="samples are drawn by these: a dataset of FILE, or a .npy file (else shuffled)",
    )
    run.add_argument(
        "--stage", metavar="SIZE", type=argument_types.size_argument, help="of a stage on each node's local disk (none)"
    )
    run.add_argument("--seed", metavar="SEED", type=argument_types.seed, default=0, help="of the shuffles (0)")
    jobs.add_arguments(parser)
    on = parser.add_argument_group("the storage")
    on.add_argument(
        "--profile", metavar="FILE", help="as `solar probe` stored it; numbers given beside it replace its own"
    )
    on.add_argument(
        "--latency", metavar="TIME", type=argument_types.seconds_argument, help="of one request alone (2ms)"
    )
    on.add_argument(
        "--bandwidth", metavar="RATE", type=argument_types.rate_argument, help="bytes a second in large reads (1GB/s)"
    )
    on.add_argument("--iops", metavar="RATE", type=argument_types.per_second, help="requests a second at best (500)")
    on.add_argument(
        "--decode", metavar="RATE", type=argument_types.rate_argument, help="bytes a second out of chunks (by filters)"
    )
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="also draws a picture: .html, or .png (needs matplotlib)")


def run(arguments: argparse.Namespace) -> int:
    mixed.check_order_options(arguments, "weights", "mixture")
    given, arguments.memory = arguments.memory, arguments.memory or 0
    storage, source = storage_of_arguments(arguments, arguments.mixture[0][0] if arguments.mixture else arguments.file)
    with awaited("opening"):
        layouts, cases = mixed_data(arguments) if arguments.mixture else _of_file(arguments, storage)
    refused = next((said for one in layouts if (said := not_carried(one))), "")
    cases = jobs.side_by_side(arguments, _try(layouts, cases, arguments.memory))
    ahead = arguments.ahead or batches_ahead(layouts)
    job = job_of(cases, 0 if refused else arguments.memory, ahead)
    if given is None:
        raise PlanError(_memory_to_give(cases, job, arguments.jobs, refused))
    windows = None
    if arguments.order is not None:
        with awaited("planning windows"):
            cases, windows = _in_mixed_order(arguments, cases, job)
        job = job_of(cases, job.memory, ahead)
    if arguments.plot:
        from solar.cli import plot  # only here: matplotlib takes its time

        plot.check_picture(arguments.plot)  # before the work
    with showing(Phase("planning, and following the others use by use", about=guessed_seconds(cases))):
        answered = as_made(_answer(cases, job, arguments.jobs), job, cases, layouts)
    cached = page_cache_note(arguments.file if layouts else None, cases)
    if arguments.plot:
        shown, of = plot.panels(cases, answered)
        lines = [planned.subject(cases), planned.describe_machine(cases, arguments.memory)]
        lines += [planned.describe_storage(storage, source) + ".", *cached.splitlines(), of]
        plot.draw_panels(arguments.plot, [line for line in lines if line], shown)
    if arguments.json:
        asked = {"memory": arguments.memory, "ahead": ahead, "no_buffer": refused}
        asked["weights"], asked["mixture"] = arguments.weights, dict(arguments.mixture) or None
        asked |= {} if arguments.jobs is None else jobs.as_json(cases, answered)
        asked["stage"] = planned.from_afar(cases, answered, arguments.stage)
        asked["stage_decoded"] = sum(map(decoded_nbytes, layouts))
        asked["mixed"] = None if cases[0].drawn.by is None else dict(cases[0].drawn.by.facts)
        asked |= {} if windows is None else mixed.windows_as_json(windows)
        print(json.dumps(planned.as_json(cases, answered, source, arguments.compute, cached) | asked, indent=1))
    else:
        say = planned.as_text if arguments.jobs is None else jobs.as_text
        for line in say(cases, arguments.memory, answered, source, arguments.compute, cached, refused):
            print(line)
        if afar := planned.from_afar(cases, answered, arguments.stage):
            print(planned.afar_in_words(afar, cases[0].epochs))
        if decoded := planned.decoded_in_words(cases, arguments.memory, sum(map(decoded_nbytes, layouts))):
            print(decoded)
        if windows is not None:
            assert cases[0].drawn.by is not None
            print()
            for line in mixed.windows_as_text(cases, windows, cases[0].drawn.by.facts["window"]):
                print(line)
        if arguments.plot:
            print(f"\n{arguments.plot} has the picture")
    return 0


def _in_mixed_order(
    arguments: argparse.Namespace, cases: list[PlannedData], job: Job
) -> tuple[list[PlannedData], mixed.WindowTable | None]:
    """Returns the cases in the order that was asked for or is advised, and other windows to compare with."""
    make, window = mixed.order_maker(arguments, cases), arguments.order_window
    table = None
    try:
        if arguments.jobs is None:
            table = mixed.compare_windows(cases, job, make, window, arguments.spread)
    except BufferTooSmall:
        table = None  # which the plan itself says in full
    if window is None:
        if table is None:
            raise PlanError("--order mixed: give --window, too, as samples, as bytes (32MiB), or as a share (5%)")
        window = (table.advised or table.tried[-1]).window
    by = make(window)
    study = cases[0].drawn.study and (cases[0].drawn.study[0], by.facts["window"] / cases[0].samples)  # its stretches
    return [case.drawn_otherwise(by=by, study=study) for case in cases], table


def _of_file(arguments: argparse.Namespace, storage: Storage) -> tuple[list[Layout], list[PlannedData]]:
    """Returns the datasets of the FILE, if there is one, and a case for each."""
    plain = arguments.file is not None and not sample_arguments.unequal(arguments)
    found, extents, chosen = sample_arguments.held(arguments, fields_asked(arguments) if plain else {})
    cases = _cases(arguments, storage, found, extents)
    return [*found.values()], [one.drawn_otherwise(chosen=chosen) for one in cases]


def _memory_to_give(cases: list[PlannedData], job: Job, together: int | None, refused: str) -> str:
    """Returns a quarter of the data, or what the batches take if that is more, and a line that says so."""
    total, least = sum(case.units.total_nbytes for case in cases), 0
    if not refused:
        try:
            _follow(cases, replace(job, memory=together or 1), together)  # too little for any batch
        except BufferTooSmall as error:
            least = error.least
    quarter = f"of {quantities.size(total)} a quarter is --memory {total // 4}"
    if least > total // 4:
        batches = f"the batches take {quantities.size(least)}"
        quarter = f"{batches}, with a quarter of {quantities.size(total)} that is --memory {least + total // 4}"
    return f"how much memory may samples take on each node? Give --memory SIZE: {quarter}"


def _follow(cases: list[PlannedData], job: Job, together: int | None) -> Answer:
    return compare_policies(cases, job) if together is None else jobs.compare_jobs(cases, job)


def _answer(cases: list[PlannedData], job: Job, together: int | None) -> Answer:
    try:
        return _follow(cases, job, together)
    except BufferTooSmall as error:
        few = f"the batches of a node's ranks alone take {error.least:,} bytes in the loader"
        if together is not None:
            few = f"a service of all jobs, or each by itself with its part, needs {error.least:,} bytes for batches"
        raise PlanError(
            f"--memory {job.memory}: {few}; give at least --memory {error.least}, or 0 to read without a buffer"
        ) from None


# --- what is asked ----


def storage_of_arguments(arguments: argparse.Namespace, path: str | None) -> tuple[Storage, str]:
    """Returns the storage of the data, and where its numbers come from."""
    given = {name: getattr(arguments, name) for name in ("latency", "bandwidth", "iops", "decode")}
    given = {name: value for name, value in given.items() if value is not None}
    base, source = ASSUMED, "assumed: measure yours with `solar probe`"
    if arguments.profile:
        base, source = profile.load(arguments.profile), f"profile {arguments.profile}"
    elif path:
        base, source = stored_storage(path)
    if {"latency", "bandwidth", "iops"} <= set(given):
        source = "as given"
    elif given:
        source = f"{', '.join(given)} as given; else {source}"
    return replace(base, **given), source


def stored_storage(path: str) -> tuple[Storage, str]:
    """Returns the storage of a data set as the loader sees it, and where its numbers come from."""
    return profile.stored_or_guessed(files_of(path)[0])


def page_cache_note(path: str | None, cases: list[PlannedData]) -> str:
    """Returns a note if this machine's page cache has room for everything that would be read; else nothing."""
    if path is None or is_url(path) or not fits_page_cache(sum(case.units.total_nbytes for case in cases)):
        return ""
    decoding = any(case.units.encoded for case in cases)
    left = "only decoding is left to plan" if decoding else "there is nothing to plan"
    return (
        "These data fit into this machine's page cache: after the first epoch neither PyTorch nor solar waits for the "
        f"storage, and {left}.\nThe figures are for a machine without room for them."
    )


def fits_page_cache(nbytes: float) -> bool:
    """Returns whether this machine's page cache has room for this much."""
    return nbytes <= ROOM * machine.page_cache_nbytes()


def _cases(
    arguments: argparse.Namespace,
    storage: Storage,
    layouts: Mapping[str, Layout],
    extents: Mapping[str, HeldMap | None],
) -> Iterator[PlannedData]:
    """Returns a case for each field of the samples. Fields divide the memory by their bytes."""
    world = _world(arguments)
    cut = next((one for one in extents.values() if one is not None and one.in_blocks), None)
    if arguments.weights and (cut is not None or arguments.where):
        which = "boxes" if arguments.crop else "samples that --where leaves" if arguments.where else "such samples"
        raise PlanError(f"{which} are planned shuffled: leave out --weights")
    named = {name: of_layout(one) for name, one in layouts.items()} or {"": units_of_arguments(arguments)}
    if arguments.file is not None and (arguments.samples or arguments.sample_bytes):
        raise PlanError(
            "how many samples there are, and how large, is in the FILE: leave out --samples and --sample-bytes"
        )
    total = sum(units.total_nbytes for units in named.values())
    weights = sample_weights(arguments, next(iter(named.values())).samples)
    for name, units in named.items():
        layout, costs = layouts.get(name), storage
        if layout is not None:
            costs = profile.with_decoding(storage, layout, planned_threads(world.ranks_per_node) * world.ranks_per_node)
        scratch = scratch_of(units) if layout is None else scratch_nbytes(layout)
        memory = arguments.memory * units.total_nbytes // max(total, 1)
        training = arguments.batch_size, memory, costs, arguments.seed, arguments.epochs
        one = PlannedData(name, units, world, *training, scratch, extents=extents.get(name))
        yield one.drawn_otherwise(weights=weights)


def _try(layouts: list[Layout], cases: list[PlannedData], memory: int) -> list[PlannedData]:
    """Returns the cases with how a buffer may hold their rows packed. It reads a few rows, as the loader does."""
    rows = not any(case.piece.in_blocks for case in cases)
    if not layouts or not memory or not rows:  # blocks are cut where they lie
        return cases
    world = cases[0].world
    nodes = -(-world.ranks // world.ranks_per_node)
    share = memory * nodes / sum(case.units.samples * case.units.sample_nbytes for case in cases)
    if share >= 1:
        return cases
    cores = planned_threads(world.ranks_per_node) * world.ranks_per_node
    pairs = zip(layouts, cases, strict=True)
    return [replace(case, packing=on_cores(try_packing(layout, case.storage, share), cores)) for layout, case in pairs]


def mixed_data(arguments: argparse.Namespace) -> tuple[list[Layout], list[PlannedData]]:
    """Returns the datasets of all sources of a mixture, and a case for each."""
    others = arguments.weights, arguments.samples, arguments.sample_bytes
    if any(others) or not sample_arguments.of_rows_alone(arguments):
        raise PlanError(
            "--mixture: its samples are rows of FILEs: leave out --weights, kinds of samples, and made up ones"
        )
    names = [name for name in (arguments.file, *arguments.dataset) if name is not None]
    sources = {path: sample_layouts(path, names) for path, _ in arguments.mixture}
    world, mixed = _world(arguments), argument_types.mixture_order(arguments, sources)
    cases, first = [], 0
    for path, found in sources.items():
        storage = storage_of_arguments(arguments, path)[0]
        for name, layout in found.items():
            threads = planned_threads(world.ranks_per_node) * world.ranks_per_node
            units, costs = of_layout(layout), profile.with_decoding(storage, layout, threads)
            training = arguments.batch_size, arguments.memory, costs, arguments.seed, arguments.epochs
            one = PlannedData(
                f"{path}:{name}",
                units,
                world,
                *training,
                scratch_nbytes(layout),
                drawn=SampleDraw(mixed=mixed, first=first),
            )
            cases.append(one)
        first += units.samples
    return [layout for found in sources.values() for layout in found.values()], cases


def _world(arguments: argparse.Namespace) -> World:
    per_node = arguments.ranks_per_node or arguments.ranks
    if per_node > arguments.ranks:
        raise PlanError(f"--ranks-per-node {per_node} of --ranks {arguments.ranks}: a node has at most all ranks")
    return World(0, arguments.ranks, 0, per_node)


def sample_weights(arguments: argparse.Namespace, samples: int) -> NDArray[np.float64] | None:
    """Returns the weights by which samples are drawn; None: they are shuffled."""
    name = arguments.weights
    if name is None:
        return None
    try:
        values = np.load(name) if name.endswith(".npy") else None
    except (OSError, ValueError) as error:
        raise PlanError(f"--weights {name}: {error}") from None
    if values is None and arguments.file is None:
        raise PlanError(f"--weights {name}: without a FILE they are in a .npy file, as numpy.save writes it")
    if values is None:
        values = read(files_of(arguments.file), name)
    if values.shape != (samples,) or values.dtype.kind not in "biuf":
        raise PlanError(
            f"--weights {name}: it has the shape {values.shape} and type {values.dtype}, and there are {samples:,} "
            "samples; a number for each is needed"
        )
    return checked_weights(values.astype(np.float64))


def units_of_arguments(arguments: argparse.Namespace) -> Units:
    if not arguments.samples or not arguments.sample_bytes:
        raise PlanError("what is to be read? Give a FILE, or --samples and --sample-bytes")
    return uniform(arguments.samples, arguments.sample_bytes, per_unit=arguments.samples_per_chunk)


def field_names(arguments: argparse.Namespace) -> list[str]:
    """Returns the fields of a sample, by the names of their datasets."""
    return (
        sample_arguments.named_datasets(arguments)
        if sample_arguments.unequal(arguments)
        else [*fields_asked(arguments)]
    )


def fields_asked(arguments: argparse.Namespace) -> dict[str, Layout]:
    """Returns the fields of a sample that is not ragged: those of the FILE, and those of other files."""
    alike = not sample_arguments.elsewhere(arguments)
    return sample_layouts(
        arguments.file, sample_arguments.named_datasets(arguments), alike=alike
    ) | sample_arguments.fields_beside(arguments)


def sample_layouts(path: str, names: list[str], *, alike: bool = True) -> dict[str, Layout]:
    """Returns the fields of a sample: those named, or all that have as many samples as the largest dataset.

    Named ones must be equally long, or (not `alike`) may have any shape.
    """
    files = files_of(path)
    if names:
        layouts = {name: inspect(files, name) for name in names}
        samples = {layout.samples for layout in layouts.values()}
        if alike and len(samples) > 1:
            found = ", ".join(f"{name}: {layout.samples:,}" for name, layout in layouts.items())
            raise PlanError(f"{path}: the fields of a sample must have the same number of samples, not {found}")
    else:
        surveyed = survey(files).layouts
        layouts = fields_of(surveyed)
        if not layouts:
            raise PlanError(f"{path}: it has no dataset with samples that can be read; `solar inspect` says why")
        if alike:
            sample_arguments.no_groups(path, surveyed, layouts)
    unread = next((layout for layout in layouts.values() if layout.reader == "none"), None)
    if unread is not None:
        raise PlanError(f"{path}: {unread.name} cannot be read: {unread.reason}")
    return layouts


def fields_of(layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """Returns the datasets with as many samples as the largest, once each; none if none can be read."""
    usable = {name: one for name, one in layouts.items() if one.reader != "none" and one.nbytes and one.shape}
    usable = once_each(usable)
    samples = max(usable.values(), key=lambda layout: layout.nbytes).samples if usable else 0
    return {name: layout for name, layout in usable.items() if layout.samples == samples}
