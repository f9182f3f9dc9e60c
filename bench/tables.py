"""A table is a function of records: all tables of docs/ and of the report are made here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Record = dict[str, Any]
LIMITS = ("limit_pread", "limit_decode")
SAMPLE_NBYTES = 65536  # of python -m bench.ranks


# --- what all of them need ----


def heading(head: str) -> str:
    """Of a table in markdown; a column whose name ends with a colon is one of numbers."""
    names = head.split("|")
    ruled = "|".join("--:" if name.endswith(":") else "---" for name in names)
    return f"{row(name.removesuffix(':') for name in names)}\n|{ruled}|"


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(head: str, rows: Iterable[Iterable[object]]) -> str:
    """In markdown; empty without rows."""
    texts = [row(cells) for cells in rows]
    return "\n".join([heading(head), *texts]) if texts else ""


def parted(*parts: str) -> str:
    """One below the other, those that there are."""
    return "\n\n".join(part for part in parts if part)


def folded(summary: str, text: str) -> str:
    """What a page shows when its reader asks for it."""
    return f'<details markdown="1">\n<summary>{summary}</summary>\n\n{text}\n\n</details>' if text else ""


def newest(found: Iterable[Record], *keys: str) -> list[Record]:
    """Of records in which these are the same, the last one that did not fail."""
    return [*{tuple(one[key] for key in keys): one for one in found if "failed" not in one}.values()]


def rate(value: float) -> str:
    """At least three figures: 12.3, 456, 7,890."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def shown(value: object) -> str:
    """A number or a word of a record."""
    return rate(value) if isinstance(value, int | float) else str(value)


def times(one: Record | None, other: Record | None, form: str = ".1f") -> str:
    return f"{one['median'] / other['median']:{form}}" if one and other else "–"


def span(values: Sequence[float], form: Callable[[float], str]) -> str:
    """The least and the most."""
    return f"{form(min(values))}–{form(max(values))}"


def mebibytes(nbytes: float) -> str:
    return f"{nbytes / 2**20:,.0f}"


def setting(record: Record, between: str = ", ") -> str:
    """The setting that was best."""
    return between.join(f"{name} {value}" for name, value in record["setting"].items()) or "default"


def where(record: Record) -> str:
    """The machine that something was measured on, and what with."""
    facts = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['file_system']}, "
        f"Linux {facts['kernel']}, Python {facts['python']}; {versions}."
    )


def line(head: str, record: Record, said: Callable[[Record], str]) -> str:
    """One record for people, as it comes."""
    if "failed" in record:
        return f"{head} failed: {record['failed']}"
    return f"{head} skipped: {record['skipped']}" if "skipped" in record else f"{head} {said(record)}"


# --- rates: python -m bench ----

OURS = ("solar_loader", "solar_buffer_0", "solar_direct")


def by_scene(found: Iterable[Record]) -> dict[str, dict[str, Record]]:
    """For each scene the records of its peers; of the same, the last one that was counted."""
    scenes: dict[str, dict[str, Record]] = {}
    for record in newest(found, "scene", "peer"):
        if "median" in record:
            scenes.setdefault(record["scene"], {})[record["peer"]] = record
    return scenes


def rates(found: list[Record], titles: dict[str, str] | None = None) -> str:
    """Epochs of solar beside those of the best others; every peer; and who was not counted."""
    return parted(measured(found), rates_of_experts(found, titles), peers(by_scene(found).values()), not_counted(found))


def rates_of_experts(found: list[Record], titles: dict[str, str] | None = None) -> str:
    """Solar beside the best of others, where it loses first.

    `titles`: of all scenes; those without a record are rows that say so.
    """
    head = "scene|best other reader|later epochs, samples/s:|solar:|×:|whole runs:|solar's:|×:"
    return table(head, scene_rows(by_scene(found), titles or {}, contest, ratio))


def rates_of_people(found: list[Record], titles: dict[str, str] | None = None) -> str:
    """Solar beside PyTorch with h5py and workers, where it gains least first."""
    head = "scene|PyTorch + h5py|later epochs, samples/s:|solar:|×:|first batch, s:|solar's:|whole runs:|solar's:|×:"
    scenes = {name: of for name, of in by_scene(found).items() if {"torch_h5py", "solar_loader"} <= of.keys()}

    def cells(of: dict[str, Record]) -> Iterator[object]:
        torch, solar = of["torch_h5py"], of["solar_loader"]
        yield from (torch["title"], setting(torch), *paces(torch, solar))
        yield from (f"{one['start']:.1f}" for one in (torch, solar))
        yield from (shown_of(torch), shown_of(solar), times(solar, torch))

    def gain(of: dict[str, Record]) -> float:
        return pace(of["solar_loader"]) / pace(of["torch_h5py"])

    return table(head, scene_rows(scenes, titles or {}, cells, gain))


Peers = dict[str, Record]  # of one scene, by their names


def scene_rows(
    scenes: dict[str, Peers], titles: dict[str, str],
    cells: Callable[[Peers], Iterator[object]], gain: Callable[[Peers], float],
) -> list[list[object]]:  # fmt: skip
    """A row for each scene, where solar gains least first; then those without a record."""
    rows = [[*cells(of)] for of in sorted(scenes.values(), key=gain)]
    width = len(rows[0]) - 2 if rows else 0
    return rows + [[title, "not recorded", *[""] * width] for name, title in titles.items() if name not in scenes]


def pace(record: Record) -> float:
    """Samples a second of the epochs after the first; of a run of one epoch, of that one with all that it needs."""
    return float(record["steady"] if "steady" in record and record.get("epochs", 2) > 1 else record["median"])


def paces(other: Record | None, solar: Record | None) -> Iterator[str]:
    """Theirs, solar's, and how many times that is; in brackets those of whole runs of a single epoch."""
    for one in (other, solar):
        yield "–" if one is None else rate(pace(one)) if one.get("epochs", 2) > 1 else f"({rate(pace(one))})"
    yield f"{pace(solar) / pace(other):.1f}" if solar and other else "–"


def others(peers_of: Peers) -> list[Record]:
    """Those that are neither ours nor limits, the fastest first."""
    found = [one for peer, one in peers_of.items() if peer not in (*OURS, *LIMITS)]
    return sorted(found, key=lambda one: -pace(one))


def ratio(peers_of: Peers) -> float:
    """Of later epochs, with solar's defaults; a scene that cannot be compared comes last."""
    best, solar = others(peers_of), peers_of.get("solar_loader")
    return pace(solar) / pace(best[0]) if solar and best else float("inf")


def contest(peers_of: Peers) -> Iterator[object]:
    solar, best = peers_of.get("solar_loader"), next(iter(others(peers_of)), None)
    yield _any(peers_of)["title"]
    yield best["label"] if best else "–"
    yield from paces(best, solar)
    yield from (shown_of(best), shown_of(solar), times(solar, best))


def limits(found: list[Record]) -> str:
    """What the machine allows in each scene, and how much of it solar reaches."""
    rows = []
    for of in by_scene(found).values():
        solar, most = of.get("solar_loader"), limit(of)
        if solar and most:
            cells = (solar["title"], most["label"].removeprefix("limit: "), rate(most["median"]), rate(solar["steady"]))
            rows.append((solar["steady"] / most["median"], cells))
    rows.sort(key=lambda row: row[0])
    return table("scene|limit|samples/s:|solar:|of the limit:", ((*cells, f"{share:.2f}") for share, cells in rows))


def measured(found: Iterable[Record]) -> str:
    """On what, when, and how."""
    counted = [one for one in found if "median" in one]
    if not counted:
        return ""
    days = sorted({one.get("made", "today")[:10] for one in counted})
    runs = sorted({len(one["rates"]) for one in counted})
    loads = [one["load_before"] for one in counted if "load_before" in one]
    cold = ", ".join(sorted({one["cache_how"] for one in counted if "cache_how" in one}))
    return "".join((
        f"{where(counted[0])} {' to '.join(dict.fromkeys((days[0], days[-1])))}; medians of ",
        f"{' to '.join(dict.fromkeys((str(runs[0]), str(runs[-1]))))} whole run{'' if runs == [1] else 's'} in turns.",
        f" Load average before it began: at most {max(loads):.1f}." if loads else "",
        f" Cold: {cold} before each run." if cold else "",
    ))  # fmt: skip


def limit(peers_of: dict[str, Record]) -> Record | None:
    """The better of reading and decoding alone. None where a buffer keeps what was decoded: it is decoded once."""
    if "limit_decode" in peers_of and "solar_buffer_0" in peers_of:
        return None
    return max((peers_of[one] for one in LIMITS if one in peers_of), key=lambda record: record["median"], default=None)


def peers(scenes: Iterable[dict[str, Record]]) -> str:
    """All that ran in a scene, the fastest first."""
    rows = (
        (one["title"], one["label"], rate(one["median"]), _steady(one), f"{one.get('start', 0):.1f}", one["epochs"],
         mebibytes(one["peak_rss"]), setting(one))
        for peers_of in scenes for one in sorted(peers_of.values(), key=lambda one: -one["median"])
    )  # fmt: skip
    return table("scene|reader|whole runs, samples/s:|epochs alone:|first batch, s:|epochs:|peak MiB:|setting", rows)


def _steady(one: Record) -> str:
    return rate(one["steady"]) if "steady" in one else "–"


def not_counted(found: Iterable[Record]) -> str:
    """Who was not counted anywhere, and what failed of those that were."""
    found = [(one.get("peer") or one.get("part") or one.get("step"), one) for one in found]
    ran = {who for who, one in found if "failed" not in one and "skipped" not in one}
    reasons = {who: one.get("skipped") or one.get("failed") for who, one in found}
    absent = [who for who, reason in reasons.items() if who not in ran and "not installed" in str(reason)]
    lines = [f"- not installed: {', '.join(map(str, absent))}"] if len(absent) > 1 else []
    shown = ran if len(absent) < 2 else ran | set(absent)
    lines += [f"- {who}: {reason}" for who, reason in reasons.items() if who not in shown]
    lines += [f"- {who} in {one.get('scene')}: {one['failed']}" for who, one in found if "failed" in one and who in ran]
    return "Not counted:\n\n" + "\n".join(lines) if lines else ""


def _any(peers_of: dict[str, Record]) -> Record:
    return next(iter(peers_of.values()))


def shown_of(record: Record | None) -> str:
    return rate(record["median"]) if record else "–"


# --- trainings, emulated and real ----


def utilisation(found: Iterable[Record], wanted: Iterable[tuple[str, str]] = ()) -> str:
    """A row for each loader in each scene of python -m bench.utilisation; `wanted`: those that must have one."""
    rows = []
    there = newest(found, "scene", "peer")
    for one in there:
        memory = f", memory for {one['fraction']:g}" if one["fraction"] else ""
        rows.append((
            f"{one['scene']}{memory}", f"{one['demand'] / 1e6:,.0f}", f"{one['most']:.1%}", one["label"],
            f"{one['median']:.1%}", mebibytes(one["peak_rss"]), setting(one),
        ))  # fmt: skip
    ran = {(one["scene"], one["peer"]) for one in there}
    none = [(scene, "", "", peer, "not recorded", "", "") for scene, peer in wanted if (scene, peer) not in ran]
    return table("scene|demand, MB/s:|most:|loader|AU:|peak MiB:|setting", [*rows, *none])


def dlio(found: Iterable[Record]) -> str:
    """Utilisation as DLIO counts it: the mean of the epochs after the first."""
    runs = newest(found, "scene", "peer")
    rows = (
        (one["scene"], one["peer"], f"{statistics.fmean(one['utilisation']):.1%}", len(one["utilisation"]),
         one["setting"]["read_threads"])
        for one in runs
    )  # fmt: skip
    about = (
        f"Samples of {one['sample_nbytes'] / 1e6:.1f} MB, one a step, {one['compute_seconds'] * 1e3:g} ms of computing "
        "each."
        for one in runs[:1]
    )
    return parted(*about, table("storage|loader|AU:|epochs:|readers:", rows))


def far(found: Iterable[Record]) -> str:
    """Samples a second from a server far away, by its latency; of each, whole runs of two epochs, and the later one."""
    runs = newest(found, "delay_ms", "who")
    delays = sorted({one["delay_ms"] for one in runs})
    of = {(one["who"], one["delay_ms"]): one for one in runs}

    def cells(who: str) -> Iterator[str]:
        for delay in delays:
            one = of.get((who, delay))
            if one is None:
                yield "–"
            elif "bytes_per_second" in one:
                yield f"{one['bytes_per_second'] / 1e6:,.0f} MB/s"
            else:
                later = "–" if one["later"] is None else rate(one["later"])
                yield f"{rate(one['first'])}, {later}"

    # What is read in order comes first, for there others are ahead; and solar after those that it is compared with.
    names = sorted(dict.fromkeys(one["who"] for one in runs), key=lambda who: ("in order" not in who, "solar" in who))
    rows = ((who, *cells(who)) for who in names)
    return table("|".join(["who", *(f"{delay:g} ms:" for delay in delays)]), rows)


def timeline(found: list[Record]) -> str:
    """One epoch as it passed."""
    last = found[-1]
    rows = (
        (one["label"], f"{one['seconds']:.2f}", f"{sum(one['waited']) / one['seconds']:.0%}",
         rate(1e3 * max(one["waited"])),
         *(rate(one[name][-1] / 1e6) if name in one else "–" for name in ("bytes", "bytes_decoded")))
        for one in last["loaders"]
    )  # fmt: skip
    batches, step = len(last["loaders"][0]["began"]), f"{1000 * last['compute_seconds']:g} ms"
    about = f"{last['samples']:,} {last['title']}: {batches} batches of {last['batch']}, steps of {step}."
    return f"{about}\n\n{table('loader|epoch, s:|waiting:|longest wait, ms:|MB read:|MB decoded:', rows)}"


def lossy(found: list[Record]) -> str:
    """Final losses by bound, beside their spread over seeds."""
    runs: dict[tuple[str, float], list[Record]] = {}
    for one in found:
        runs.setdefault((one["case"], one["relative"]), []).append(one)
    rows = (
        (case, f"rel={bound:g}" if bound else "none", f"{of[0]['ratio']:.1f}",
         *(", ".join(f"{one[name]:.4f}" for one in of) for name in ("held_out", "held_out_compressed")))
        for (case, bound), of in runs.items()
    )  # fmt: skip
    return table("training|bound|ratio:|held out as measured, by seed:|held out compressed, by seed:", rows)


# --- ranks, and the loader itself ----


def ranks(found: Iterable[Record]) -> str:
    """What several ranks waited for, and what travelled between them."""
    rows = (
        (one["scene"], f"{one['median']:.2f}", f"{one['bytes'] / 1e6:,.0f}",
         *(f"{one[cause]:.1%}" for cause in ("storage", "exchange", "travel")),
         f"{one['exchanged_bytes'] / one['samples'] / SAMPLE_NBYTES:.1%}", mebibytes(one["memory"]))
        for one in newest(found, "scene")
    )  # fmt: skip
    return table(
        "scene|s an epoch:|MB read an epoch:|waiting, all:|for other ranks, all:|for what is on its way:|travels:|"
        "memory of the node, MiB:", rows,
    )  # fmt: skip


def loader(found: Iterable[Record]) -> str:
    """What each part of python -m bench.loader measured, beside what is wanted of it."""
    rows = (
        (one["part"], name, shown(value), shown(one.get("wanted", {}).get(name, "")))
        for one in newest(found, "part") for name, value in one["measured"].items()
    )  # fmt: skip
    return table("part|what|measured:|wanted at most:", rows)


COSTS = {  # what the page of benchmarks says of records of python -m bench.loader, with its unit
    ("overhead", "overhead_us"): ("a batch of 64 KB samples, beyond a native read of the same rows", "µs"),
    ("overhead", "loader_us_tiny"): ("a batch of 64-byte samples, in all", "µs"),
    ("first_batch", "patterns_shuffled_ms"): ("`iter()` to the first batch, 64 KB samples, shuffled", "ms"),
    ("first_batch", "million_rows_in_order_ms"): ("the same, a million samples of a few bytes, in order", "ms"),
    ("first_batch", "million_rows_shuffled_ms"): ("the same, shuffled", "ms"),
    ("memory", "rss_grown"): ("memory that grows in 50 epochs", "bytes"),
    ("memory", "objects_grown"): ("Python objects that stay from 50 epochs", ""),
    ("waiting_solar", "waited_share"): ("waiting, of the time, with 2 ms of sleep a batch", "%"),
    ("waiting_solar_on_cpu", "waited_share"): ("waiting, of the time, with 2 ms of work a batch", "%"),
    ("set_up", "state_nbytes"): ("a state", "bytes"),
    ("set_up", "resumed_first_batch_ms"): ("first batch after `load_state_dict`, amid a million samples", "ms"),
}


def loader_costs(found: Iterable[Record]) -> str:
    """For the page of benchmarks: what the loader itself costs, what is wanted, and PyTorch's where it is known."""
    by = {one["part"]: one for one in newest(found, "part")}
    by |= {"waiting_torch": min((one for part, one in by.items() if part.startswith("waiting_torch")),
                                key=lambda one: one["measured"]["waited_share"])}  # fmt: skip

    def cell(part: str, name: str, unit: str, of: str = "measured") -> str:
        value = by.get(part, {}).get(of, {}).get(name)
        return "" if value is None else f"{value:.1%}" if unit == "%" else f"{shown(value)} {unit}".rstrip()

    rows = []
    for (part, name), (what, unit) in COSTS.items():
        ours, theirs = (f"{who}_{name}" if part == "first_batch" else name for who in ("solar", "torch"))
        beside = "waiting_torch" if part == "waiting_solar" else part if part == "first_batch" else ""
        rows.append((what, cell(part, ours, unit), cell(part, ours, unit, "wanted"), cell(beside, theirs, unit)))
    return table("what|solar:|wanted at most:|PyTorch + h5py:", rows)


def adopt(found: Iterable[Record]) -> str:
    """Samples a second of a Dataset over h5py, in each way that python -m bench.adopt tries."""
    rows = (
        (one["what"], one["way"], rate(one["first"]), rate(one["later"]))
        for one in newest(found, "scene", "way") if not one["quick"] and "first" in one
    )  # fmt: skip
    return table("samples|way|first epoch, samples/s:|later:", rows)


# --- python -m bench.gpu ----


SENT = {
    "solar": "in batches of 17 MB", "solar, out of a buffer": "of these out of a buffer",
    "solar, batches of 256": "in batches of 67 MB",
}  # fmt: skip


def gpu(found: Iterable[Record]) -> str:
    """What is claimed of GPUs, and what was measured (docs/measured.md); of equal records the last one counts."""
    keys = ("step", "what", "coder", "predictor", "out")
    whole = [one for one in found if "failed" not in one or one["step"] == "tests"]
    by = [*{tuple(one.get(key) for key in keys): one for one in whole}.values()]
    tests = [one for one in by if one["step"] == "tests"]
    loaders = [one for one in by if one["step"] == "loaders" and "of_the_copy" in one]
    solar = [one for one in loaders if one["what"] in SENT]
    words = ("passed", "failures", "errors", "skipped")
    rows = [
        ("tests on a GPU", "all pass",
         ", ".join(f"{one[what]} {what}" for one in tests for what in words if what in one)),
        ("host to device, of the pinned copy's rate", "≥ 95 %",
         "; ".join(f"{one['of_the_copy']:.0%} ({one['gigabytes_a_second']:.1f} GB/s) {SENT[one['what']]}"
                   for one in solar)),
        *((f"a step waits, {scene}", "≤ 2 %", _waits(by, scene)) for scene in ("PtychoNN", "CosmoFlow")),
        *((f"`{coder}` decoded, float32", f"≥ {least} GB/s", _decoded(by, coder))
          for coder, least in (("pack", 200), ("dense", 80))),
    ]  # fmt: skip
    devices = sorted({f"{one['device']}, torch {one['torch']}, {one['made'][:10]}" for one in by})
    said = table("claim|asked|measured", ((what, asked, is_so or "not measured") for what, asked, is_so in rows))
    sent = table("host to device|GB/s:|of the pinned copy:|a step of five copies waits:|asking for a batch, µs:", (
        (one["what"], f"{one['gigabytes_a_second']:.1f}", f"{one['of_the_copy']:.0%}",
         f"{one['waited']:.1%}" if "waited" in one else "",
         f"{one['asking_microseconds']:.0f}" if "asking_microseconds" in one else "")
        for one in sorted(loaders, key=lambda one: one["gigabytes_a_second"])
    ))  # fmt: skip
    return parted("\n".join(devices), said, *([sent] if loaders else []))


def _waits(found: list[Record], scene: str) -> str:
    trained = [one for one in found if one["step"] == "training" and one.get("scene") == scene]
    ours = [one for one in trained if one["loader"] == "solar"]
    theirs = sorted((one for one in trained if one["loader"].startswith("torch")), key=lambda one: one["waited"])
    beside = f"; {theirs[0]['waited']:.1%} with {theirs[0]['loader']}" if theirs else ""
    return f"{ours[0]['waited']:.1%} of {1e3 * ours[0]['step_seconds']:.1f} ms{beside}" if ours else ""


def _decoded(found: list[Record], coder: str) -> str:
    rates = [one["gigabytes_a_second"] for one in found if one.get("coder") == coder and one.get("out") == "float32"]
    copied = [one for one in found if one.get("what") == "copy on the device"]
    beside = f" (a copy on the device: {copied[0]['gigabytes_a_second']:,.0f})" if copied else ""
    return f"{min(rates):,.0f} to {max(rates):,.0f} GB/s{beside}" if rates else ""


# --- anything else ----


# --- several trainings of one file: python -m bench.serve ----

SERVED = {
    "alone": "each alone, memory divided",
    "own": "through a service, orders of their own",
    "study": "through a service, a study's order",
    "common": "through a service, one order",
    "page_cache": "each alone, one page cache of this memory",
    "torch": "PyTorch + h5py, one page cache of this memory",
    "tensorsocket": "TensorSocket, one order, fed by solar",
}


def serve(found: Iterable[Record]) -> str:
    """For each number of trainings their rate together, alone and through a service, and the requests of the mount."""
    rows, alone = [], dict[object, float]()
    for one in newest(found, "gzip", "local", "jobs", "way"):
        where = "from the page cache" if one["local"] else "slowed mount"
        kind = f"{where}, gzip" if one["gzip"] else where
        if one["way"] == "alone":
            alone[kind, one["jobs"]] = one["rate"]
        gain = one["rate"] / alone.get((kind, one["jobs"]), one["rate"])
        rates = SERVED[one["way"]], rate(one["rate"]), f"{gain:.2g}"
        of_plan = f"{one['bytes'] / one['planned']['bytes']:.2f}" if "planned" in one else "–"
        rows.append((kind, one["jobs"], *rates, shown(one.get("requests", "–")), of_plan))
    return table("storage|trainings:|way|samples/s of all:|times alone:|requests:|bytes by the plan's:", rows)


def plain(found: Iterable[Record]) -> str:
    """What records say in numbers and words."""
    found = [*found]
    names = dict.fromkeys(name for one in found for name, value in one.items() if isinstance(value, str | int | float))
    rows = ([shown(one.get(name, "")) for name in names] for one in found)
    return table("|".join(names), rows)
