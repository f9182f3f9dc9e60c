"""Tables of records of python -m bench.cluster."""

from __future__ import annotations

from collections.abc import Iterable

from bench.tables import Record, mebibytes, newest, not_counted, parted, rate, table, times, where

POLICY = {"torch": "torch", "torch_0": "torch", "torch_8": "torch", "pinned": "pinned", "pinned_4": "pinned"}
POLICY |= {"solar": "solar"}
NAMES = {
    "torch": "PyTorch + h5py, 4 workers",
    "torch_0": "PyTorch + h5py, no workers",
    "torch_8": "PyTorch + h5py, 8 workers, read into the batch",
    "pinned": "pinning, a batch ahead",
    "pinned_4": "pinning, 4 batches ahead",
    "windowed": "windowed reader",
    "solar": "solar",
}
Case = tuple[str, int]  # a surrogate and a number of ranks


def cluster(found: Iterable[Record]) -> str:
    """What was measured beside what the planner says, then each reader, then 32 ranks by the planner."""
    found = [*found]
    return parted(shared(found), measured(found), readers(found), modelled(found), not_counted(found))


def shared(found: Iterable[Record]) -> str:
    """The machine, and how busy others kept it meanwhile."""
    read = [one for one in found if "machine" in one]
    if not read:
        return ""
    loads = [one["load"] for one in read]
    return f"{where(read[-1])} Load average before each reader: {min(loads):.0f} to {max(loads):.0f}."


def line(one: Record) -> str:
    """One record for people."""
    said = predicted(one)
    model = f", by the plan {rate(said)}" if said else ""
    return f"{rate(one['median'])} samples/s{model}; first batch {one['first_batch']:.1f} s"


def predicted(one: Record) -> float | None:
    """Samples a second as the planner has them; None: it has no such policy, or no plan."""
    of = one["plan"].get("policies", {}).get(POLICY.get(one["reader"], ""))
    return one["samples"] / of["seconds"] if of else None


def cases(found: Iterable[Record]) -> dict[Case, dict[float, dict[str, Record]]]:
    """Of each surrogate and number of ranks the readers by their memory; PyTorch, which has none, in all of them."""
    by: dict[Case, dict[float, dict[str, Record]]] = {}
    read = [one for one in found if one["reader"] != "model" and "median" in one]
    for one in newest(read, "scene", "ranks", "share", "reader"):
        by.setdefault((one["scene"], one["ranks"]), {}).setdefault(one["share"], {})[one["reader"]] = one
    for shares in by.values():
        torch = {name: one for of in shares.values() for name, one in of.items() if name.startswith("torch")}
        for of in shares.values():
            of |= torch
    return {case: dict(sorted(shares.items())) for case, shares in by.items()}


def measured(found: Iterable[Record]) -> str:
    """A row for each case and share."""
    rows = []
    for (_, ranks), shares in cases(found).items():
        for share, of in shares.items():
            four = [of.get("torch"), best_pinned(of), of.get("windowed"), of.get("solar")]
            title = next(iter(of.values()))["title"]
            rows.append((title, ranks, f"{share:g}", *map(with_plan, four), *(times(four[3], one) for one in four[:3])))
    head = (
        "samples|ranks:|memory:|PyTorch, 4 workers (plan):|pinning (plan):|windowed reader:|solar (plan):|× PyTorch:|"
        "× pinning:|× windowed:"
    )
    return table(head, rows)


def best_pinned(of: dict[str, Record]) -> Record | None:
    """The faster of those that read so many batches ahead."""
    return max(
        (one for name, one in of.items() if name.startswith("pinned")), key=lambda one: one["median"], default=None
    )


def with_plan(one: Record | None) -> str:
    """A rate, and that of the planner in brackets."""
    if one is None:
        return "–"
    said = predicted(one)
    return f"{rate(one['median'])} ({rate(said)})" if said else rate(one["median"])


def readers(found: Iterable[Record]) -> str:
    """What each reader asked of the mount, by the mount's own count, beside the plan; and how it began."""
    rows, shown = [], set[int]()
    for (_, ranks), shares in cases(found).items():
        for share, of in shares.items():
            for name, one in of.items():
                if id(one) not in shown:
                    shown.add(id(one))
                    memory = "any" if name.startswith("torch") else f"{share:g}"
                    rows.append((one["title"], ranks, memory, NAMES[name], *asked_of_mount(one), *beginning(one)))
    head = (
        "samples|ranks:|memory:|reader|requests a sample (plan):|bytes read, in data (plan):|off the plan's rate:|"
        "first batch, s:|first epoch, s:|MiB allowed:|processes grew by:"
    )
    return table(head, rows)


def asked_of_mount(one: Record) -> tuple[str, str, str]:
    """Requests and bytes of epochs after the first, and by how much the rate is off the planner's."""
    of = one["plan"].get("policies", {}).get(POLICY.get(one["reader"], ""))
    counted = [one["requests_a_sample"], one["bytes_a_sample"] / one["sample_nbytes"]]
    if not of:
        return f"{counted[0]:.3f}", f"{counted[1]:.2f}", "–"
    planned = of["requests"] / one["samples"], of["bytes"] / one["samples"] / one["sample_nbytes"]
    off = one["median"] * of["seconds"] / one["samples"] - 1
    return f"{counted[0]:.3f} ({planned[0]:.3f})", f"{counted[1]:.2f} ({planned[1]:.2f})", f"{off:+.0%}"


def beginning(one: Record) -> tuple[str, ...]:
    """Seconds to the first batch and of the first epoch, and the memory. What workers take is not looked at."""
    workers = one["reader"].startswith("torch")
    memory = ("–", "–") if workers else (mebibytes(one["memory"] * one["nodes"]), mebibytes(one["memory_grown"]))
    return f"{one['first_batch']:.1f}", f"{one['first_epoch']:.1f}", *memory


def modelled(found: Iterable[Record]) -> str:
    """The paper's number of GPUs by the planner."""
    rows = []
    for one in newest((one for one in found if one["reader"] == "model"), "scene", "share"):
        policies = one["plan"].get("policies")
        if not policies:
            rows.append((one["title"], f"{one['share']:g}", *["no room for batches"] * 4, "–", "–", "–"))
            continue
        seconds = [policies[name]["seconds"] for name in ("torch", "pinned", "solar_paper", "solar")]
        ratios = [f"{of / seconds[3]:.1f}" for of in seconds[:3]]
        rows.append((one["title"], f"{one['share']:g}", *(rate(one["samples"] / of) for of in seconds), *ratios))
    head = (
        "samples, 32 ranks|memory:|PyTorch, samples/s:|pinning:|SOLAR's published policy:|solar:|× PyTorch:|"
        "× pinning:|× SOLAR's:"
    )
    return table(head, rows)
