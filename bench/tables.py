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
    """Whole runs of solar beside the best of others, where it loses first; every peer; and who was not counted.

    `titles`: of all scenes; those without a record are rows that say so.
    """
    scenes = by_scene(found)
    rows = [([*contest(peers_of)], ratio(peers_of)) for peers_of in scenes.values()]
    rows = sorted(rows, key=lambda pair: pair[1])
    none = [[title, "not recorded", *[""] * 8] for name, title in (titles or {}).items() if name not in scenes]
    head = "scene|best other reader|samples/s:|solar:|×:|its epochs alone:|solar's:|×:|limit:|solar's, of it:"
    said = table(head, [*(cells for cells, _ in rows), *none])
    return parted(measured(found), said, peers(scenes.values()), not_counted(found))


def others(peers_of: dict[str, Record]) -> list[Record]:
    """Those that are neither ours nor limits, the fastest first."""
    found = [one for peer, one in peers_of.items() if peer not in (*OURS, *LIMITS)]
    return sorted(found, key=lambda one: -one["median"])


def ratio(peers_of: dict[str, Record]) -> float:
    """Of whole runs, with solar's defaults; a scene that cannot be compared comes last."""
    best, solar = others(peers_of), peers_of.get("solar_loader")
    return float(solar["median"] / best[0]["median"]) if solar and best else float("inf")


def contest(peers_of: dict[str, Record]) -> Iterator[object]:
    solar, most = peers_of.get("solar_loader"), limit(peers_of)
    best = next(iter(others(peers_of)), None)
    yield _any(peers_of)["title"]
    yield best["label"] if best else "–"
    yield from (shown_of(best), shown_of(solar), times(solar, best))
    steady = [one and one | {"median": one["steady"]} for one in (best, solar)]
    yield from (*map(shown_of, steady), times(steady[1], steady[0]))
    yield from (shown_of(most), times(steady[1], most, ".2f"))


def measured(found: Iterable[Record]) -> str:
    """On what, and how."""
    counted = [one for one in found if "median" in one]
    loads = [one["load_before"] for one in counted if "load_before" in one]
    cold = ", ".join(sorted({one["cache_how"] for one in counted if "cache_how" in one}))
    said = "".join(
        f"{where(one)} Medians of {len(one['rates'])} whole runs in turns, {one.get('made', 'today')[:10]}."
        for one in counted[:1]
    )
    return said + (
        (f" Load average before it began: at most {max(loads):.1f}." if loads else "")
        + (f" Cold: {cold} before each run." if cold else "")
    )


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
    lines = [f"- {who}: {reason}" for who, reason in reasons.items() if who not in ran]
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


def adopt(found: Iterable[Record]) -> str:
    """Samples a second of a Dataset over h5py, in each way that python -m bench.adopt tries."""
    rows = (
        (one["what"], one["way"], rate(one["first"]), rate(one["later"]))
        for one in newest(found, "scene", "way") if not one["quick"]
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
