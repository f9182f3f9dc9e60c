"""Fewer bytes in the rest of a training: activations in memory, gradients between ranks; times, bytes and losses.

    python -m bench.training [--what steps link losses] [--quick] [--record]

steps: CosmoFlow at several sizes, and a network of twelve equal layers, their activations kept as they are, bounded,
and by frequency, each in a process of its own, in turns. link: CosmoFlow on two ranks in network namespaces, the link
between them slowed by tc (tests/hosts: needs root and iproute2), gradients sent as they are, by torch's own hooks, and
in few bits; bytes are those that left the network card. losses: three surrogates, three seeds each, every way to keep
activations and some to send gradients; times are not told there, so two processes run at once, on a thread each.
docs/measured.md has the tables.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench import machine, records, training_part
from bench.tables import Record, newest, parted, table
from bench.training_part import KEPT, SENT, WARM
from solar.training.bounds import EARLY, EVERY, FEWEST

PARTS = ("steps", "link", "losses")
SIZES = {  # networks, and edges of universes: steps that are timed, in each of two turns
    ("cosmoflow", 32): 20, ("cosmoflow", 64): 10, ("cosmoflow", 96): 9, ("even", 32): 6, ("even", 48): 3,
}  # fmt: skip
NETWORKS = {"cosmoflow": "CosmoFlow", "even": "12 equal layers"}
RATES = ("100mbit", "1gbit")
SEEDS = (0, 1, 2)
SENT_SHORT = ("4", "8", "PowerSGD")  # whose losses are looked at
HOSTS = records.ROOT / "tests" / "hosts"
Environment = dict[str, str]


def told(words: list[object], before: list[str] | None = None, **more: str) -> Any:
    """What a part of the bench says."""
    command = [*(before or []), sys.executable, "-m", "bench.training_part", *map(str, words)]
    ended = subprocess.run(command, cwd=records.ROOT, env=os.environ | more, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ended.stderr[-2000:]}")
    return json.loads(ended.stdout.splitlines()[-1]) if ended.stdout.strip() else None


def steps(quick: bool) -> Iterator[Record]:
    """A record for each size and way, of the medians of both turns' steps."""
    for (case, size), count in itertools.islice(SIZES.items(), 1 if quick else None):
        turns: dict[str, list[Any]] = {way: [] for way in KEPT}
        for _ in range(1 if quick else 2):
            for way, found in turns.items():
                words = ["--case", case, "--size", size, "--way", way, "--steps", 2 if quick else count]
                found.append(told(["steps", *words]))
        for way, found in turns.items():
            usual, looked = (
                [
                    one
                    for turn in found
                    for step, one in enumerate(turn["seconds"])
                    if step >= WARM and chosen(step) is is_so
                ]
                for is_so in (False, True)
            )
            counts = {name: found[0].get(name) for name in ("exact", "kept", "restored")}
            rss = min(one["peak_rss"] for one in found)
            median = statistics.median(usual)
            looking = statistics.median(looked) - median if way == "bounded" and looked else 0.0
            yield {"what": "steps", "case": case, "size": size, "way": way, "median": median + looking * FEWEST / EVERY,
                   "looking": looking, "peak_rss": rss, "steps": len(usual)} | counts  # fmt: skip


def chosen(step: int) -> bool:
    """Whether bounds are chosen in a step; in the long run that is so in FEWEST of EVERY."""
    return any(first <= step < first + FEWEST for first in EARLY)


def two_ranks(words: list[object], address: str, hosts: bool, **more: str) -> Any:
    """What rank 0 of two says, on two hosts or here."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": port} | more
    with ThreadPoolExecutor(2) as pool:
        begun = []
        for rank in range(2):
            before = [sys.executable, str(HOSTS / "on_host.py"), f"h{rank + 1}"] if hosts else None
            begun.append(pool.submit(told, words, before, RANK=str(rank), **world))
        found = [one.result() for one in begun]
        return found[0]


def link(quick: bool) -> Iterator[Record]:
    """A record for each rate and way. It begins itself anew beside two hosts."""
    for rate in RATES:
        beside = [sys.executable, str(HOSTS / "hosts.py"), "--rate", rate, "--"]
        words = [sys.executable, "-m", "bench.training", "--linked", *(["--quick"] if quick else [])]
        ended = subprocess.run([*beside, *words], cwd=records.ROOT, capture_output=True, text=True)
        if ended.returncode:
            raise RuntimeError(ended.stderr[-2000:])
        for line in ended.stdout.splitlines():
            yield {"what": "link", "rate": rate} | json.loads(line)


def linked(quick: bool) -> None:
    """The ways to send gradients, on the two hosts that there are; prints a line for each."""
    for way in SENT:
        words = ["link", "--way", way, "--threads", 1, "--steps", 3 if quick else 12]
        found = two_ranks(words, "h1", True, GLOO_SOCKET_IFNAME="eth0")
        timed = found.pop("seconds")[WARM:]
        print(json.dumps({"way": way, "median": statistics.median(timed), "steps": len(timed)} | found), flush=True)


def losses(quick: bool, there: Path) -> Iterator[Record]:
    """A record for each surrogate, way and seed; none of what was recorded in the last hour."""
    jobs = [
        (case, part, way, seed)
        for part, ways in (("kept", KEPT), ("sent", SENT_SHORT))
        for way in ways
        for case in training_part.CASES
        for seed in (SEEDS[:1] if quick else SEEDS)
        if not records.found(there, what="losses", case=case, part=part, way=way, seed=seed, quick=quick)
    ]
    few = ["--epochs", 1] if quick else []

    def run(job: tuple[str, str, str, int]) -> Record:
        case, part, way, seed = job
        words = ["losses", "--case", case, "--way", way, "--seed", seed, "--threads", 1, *few]
        found = two_ranks(words, "127.0.0.1", False) if part == "sent" else told(words)
        return {"what": "losses", "case": case, "part": part, "way": way, "seed": seed} | found

    for case in training_part.CASES:
        training_part.file_of(case, training_part.CASES[case], 32, training_part.CASES[case].samples)
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(run, [job for job in jobs if job[1] == "kept"])
    yield from map(run, [job for job in jobs if job[1] == "sent"])  # each of two processes


# --- tables ----


def of(what: str, found: list[Record]) -> list[Record]:
    return [one for one in found if one["what"] == what]


def training(found: list[Record]) -> str:
    """All that was measured."""
    return parted(measured(found), ended(found))


def measured(found: list[Record]) -> str:
    """Memory, bytes and time."""
    return parted(kept(found), sent(found))


def kept(found: list[Record]) -> str:
    """Memory and time of a step, beside exact training of the same size; what takes most time first."""
    latest = newest([{"case": "cosmoflow"} | one for one in of("steps", found)], "case", "size", "way")
    by = {(one["case"], one["size"], one["way"]): one for one in latest}
    rows = []
    for (case, size, way), one in by.items():
        exact = by.get((case, size, "exact"))
        if way != "exact" and exact is not None:
            slower = one["median"] / exact["median"] - 1
            rss = exact["peak_rss"] - one["peak_rss"]
            more = (f"{exact['median'] * 1e3:,.0f}", f"{one['median'] * 1e3:,.0f}", f"{slower:+.0%}")
            mb = [f"{one[name] / 1e6:,.1f}" for name in ("exact", "kept")]
            ratios = [f"{one['exact'] / one[name]:.1f}" for name in ("kept", "restored")]
            rows.append((slower, (NETWORKS[case], size, way, *mb, *ratios, f"{rss / 1e6:,.0f}", *more)))
    head = (
        "network|edge:|way|MB, exact:|MB kept:|times less:|with the one restored:|MB of RSS less:|ms a step, exact:|"
        "ms a step:|time:"
    )
    return table(head, (row for _, row in sorted(rows, key=lambda one: -one[0]))) if rows else ""


def sent(found: list[Record]) -> str:
    """Bytes and time of a step, the slowest first."""
    latest = newest(of("link", found), "rate", "way")
    exact = {one["rate"]: one for one in latest if one["way"] == "exact"}
    ordered = sorted(latest, key=lambda one: (RATES.index(one["rate"]), -one["median"]))
    rows = (
        (one["rate"], one["way"], f"{one['bytes'] / 1e6:,.2f}", f"{exact[one['rate']]['bytes'] / one['bytes']:.1f}",
         f"{one['median'] * 1e3:,.0f}", f"{exact[one['rate']]['median'] / one['median']:.1f}")
        for one in ordered
        if one["rate"] in exact
    )  # fmt: skip
    return (
        table("link|gradients|MB sent a step, by each rank:|times fewer:|ms a step:|times faster:", rows)
        if latest
        else ""
    )


def ended(found: list[Record]) -> str:
    """Held-out losses after the last epoch, beside those of exact training; what is farthest off first."""
    by: dict[tuple[str, str, str], dict[int, float]] = {}
    for one in newest(of("losses", found), "case", "part", "way", "seed"):
        by.setdefault((one["case"], one["part"], one["way"]), {})[one["seed"]] = one["held_out"][-1]
    rows = []
    for (case, part, way), losses_of in by.items():
        exact = by.get((case, "kept", "exact"), {})
        if way == "exact" or len(exact) < 2 or losses_of.keys() != exact.keys():
            continue
        mean, spread = statistics.fmean(exact.values()), statistics.stdev(exact.values())
        off = (statistics.fmean(losses_of.values()) - mean) / spread
        told_of = [", ".join(f"{some[seed]:.4f}" for seed in sorted(some)) for some in (exact, losses_of)]
        rows.append((off, (case, "activations" if part == "kept" else "gradients", way, *told_of, f"{off:+.1f}")))
    head = "training|what|way|held out, exact, by seed:|held out, by seed:|mean off, in deviations of seeds:"
    return table(head, (row for _, row in sorted(rows, key=lambda one: -one[0]))) if rows else ""


def main() -> None:
    parser = records.arguments("bench.training", __doc__, "training", what=PARTS)
    parser.add_argument("--linked", action="store_true", help="on hosts that are there; not for people")
    asked = parser.parse_args()
    if asked.linked:
        linked(asked.quick)
        return
    load = records.load(asked.load_before)
    facts = {"bench": "training", "quick": asked.quick, "load_before": load} | machine.described(Path("/"))
    parts = {"steps": steps, "link": link, "losses": partial(losses, there=asked.out)}
    for what in asked.what or PARTS:
        for record in parts[what](asked.quick):
            records.append(asked.out, record | facts)
            print({key: value for key, value in record.items() if key != "held_out"}, flush=True)


if __name__ == "__main__":
    main()
