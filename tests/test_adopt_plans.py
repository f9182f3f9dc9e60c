"""What an adopted Dataset reads is planned, shared and served as rows of an H5Dataset are; batches stay torch's."""

from __future__ import annotations

import logging
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from adopt_kit import adopt_always, answered, compared, draws, epochs_of, kept, scan, seed_all, told
from kit import settle
from mpi_kit import under_gloo
from serve_kit import serving
from test_adopt import BODIES, DATASETS, PASSED_ON, SAMPLES, LookedUp, Reading, by_rows, order, with_draws
from torch.utils.data import ConcatDataset, DistributedSampler, Subset

from solar import DataLoader, PlanSampler
from solar.loader import adopt, adopt_plans
from solar.samples.row_windows import windows_at

BUFFER = "3MiB"  # less than the samples of `path` have, and twice what their batches take


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    adopt_always(monkeypatch)
    monkeypatch.setattr(adopt_plans.PlannedRows, "nbytes", 1 << 60)  # plans, even of what memory has room for


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return scan(tmp_path_factory.mktemp("planned"), SAMPLES)


def planned(loader: DataLoader[Any]) -> bool:
    """Whether the last epoch's rows came from a plan, or from a service."""
    return loader.stats()["bytes"] > 0


def at_two_rows(file: Any, i: int) -> Any:
    return file["flat"][i], file["x"][i : i + 3], file["x"][i + 1 if i + 1 < SAMPLES else 0]


MORE = {
    "several rows of one dataset": lambda file, i: (file["flat"][min(i + 1, SAMPLES - 1)], file["flat"][i]),
    "windows that begin before the first row": lambda file, i: file["x"][max(0, i - 3) : i + 2],
    "a row and a window": at_two_rows,
}
ALIKE = {
    "parts of a ConcatDataset": lambda path: ConcatDataset([Reading(path, by_rows), LookedUp(path, order(5))]),
    "a list that names rows twice": lambda path: LookedUp(path, [at // 2 for at in range(SAMPLES)]),
    "a Subset that names samples twice": lambda path: Subset(Reading(path, by_rows), [at % 50 for at in range(90)]),
}
BODIES = {name: BODIES[name] for name in BODIES if name != "as an array"} | MORE
DATASETS = {name: DATASETS[name] for name in DATASETS if name != "a ConcatDataset"} | ALIKE


@pytest.mark.parametrize("options", [{"shuffle": True, "batch_size": 8}, {"batch_size": None}, {"batch_size": 5}])
@pytest.mark.parametrize("body", BODIES)
def test_rows_that_rules_say_come_from_a_plan(path: str, body: str, options: dict[str, Any]) -> None:
    make = lambda: Reading(path, BODIES[body])  # noqa: E731
    loader = compared(make, collate_fn=kept, epochs=3, ours={"buffer": "16MiB"}, **options)
    if body == "windows that begin before the first row" and not options.get("shuffle"):
        return  # the first ones begin at row 0, which is the wrong rule for those after them
    assert planned(loader)
    ours, theirs = answered(loader)
    assert ours > theirs


def no_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has each check find that reading ahead takes too long: a storage that allows few requests a second."""
    for name in ("SHARE_OF_TIME", "KEPT_SHARE"):
        monkeypatch.setattr(adopt, name, 0.0)
    monkeypatch.setattr(adopt, "CHECKED_EVERY", 8)
    monkeypatch.setattr(adopt, "BAD_CHECKS", 1)


def shuffled(path: str, epochs: int, buffer: str) -> DataLoader[Any]:
    make = lambda: Reading(path, by_rows)  # noqa: E731
    loader: DataLoader[Any] = compared(
        make, collate_fn=kept, batch_size=8, shuffle=True, epochs=epochs, ours={"buffer": buffer}
    )
    return loader


def test_a_plan_may_be_faster_where_reading_ahead_is_not(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    no_faster(monkeypatch)
    with caplog.at_level(logging.INFO, "solar"), warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = shuffled(path, 3, BUFFER)
    assert planned(loader)
    assert "and reading ahead is no faster" in caplog.text
    assert caplog.text.index("and reading ahead is no faster") < caplog.text.index("planning what Reading")


def test_without_a_plan_it_stays_left_alone(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    no_faster(monkeypatch)
    monkeypatch.setattr(adopt_plans, "planned_rows", lambda *_: "it may not")
    with pytest.warns(UserWarning, match="buffer has no effect over Reading: h5py takes"):
        loader = shuffled(path, 3, BUFFER)
    assert not planned(loader)
    assert "reading ahead is no faster" in loader.report()


@pytest.mark.parametrize("stays", [True, False])
def test_what_stays_in_memory_is_read_ahead_though_the_first_epoch_gains_nothing(
    path: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_faster(monkeypatch)
    monkeypatch.setattr(adopt, "KEPT_SHARE", 1e9 if stays else 0.0)
    loader = shuffled(path, 1, "64MiB")
    ours, theirs = answered(loader)
    assert (ours > 2 * theirs) == stays


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("name", DATASETS)
def test_they_do_beneath_other_datasets_too(path: str, name: str, shuffle: bool) -> None:
    make = lambda: DATASETS[name](path)  # noqa: E731
    loader = compared(make, collate_fn=kept, batch_size=6, shuffle=shuffle, epochs=3, ours={"buffer": BUFFER})
    assert planned(loader)
    assert loader.stats()["buffer_hits"] > 0


@pytest.mark.parametrize("body", PASSED_ON)
def test_what_only_h5py_can_read_is_not_planned(path: str, body: str) -> None:
    make = lambda: Reading(path, PASSED_ON[body])  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = compared(make, collate_fn=kept, batch_size=8, shuffle=True, ours={"buffer": "16MiB"})
    assert not planned(loader)


@pytest.mark.parametrize("sampler", ["none", "shuffle", "generator", "weighted", "distributed", "plan", "a list"])
def test_every_draw_is_torchs(path: str, sampler: str) -> None:
    def options(data: Any) -> dict[str, Any]:
        return {
            "none": lambda: {},
            "shuffle": lambda: {"shuffle": True},
            "generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(5)},
            "weighted": lambda: {"sampler": torch.utils.data.WeightedRandomSampler([1.0] * SAMPLES, 70)},
            "distributed": lambda: {"sampler": DistributedSampler(data, 2, 1, seed=4)},
            "plan": lambda: {"sampler": PlanSampler(data, 1, 0, seed=3)},
            "a list": lambda: {"sampler": order(7)},
        }[sampler]()

    found = []
    for kind, more in ((torch.utils.data.DataLoader, {}), (DataLoader, {"buffer": "16MiB"})):
        data = Reading(path, with_draws)
        loader = kind(data, batch_size=7, collate_fn=kept, **options(data), **more)
        found.append(list(epochs_of(loader, 3)))
    assert found[0] == found[1]
    assert planned(loader) == (sampler != "generator")


def fails_at_some(file: Any, i: int) -> Any:
    if i % 20 == 3:
        raise LookupError(f"sample {i}")
    return file["flat"][i]


def test_an_error_of_the_dataset_takes_the_place_of_its_batch(path: str) -> None:
    make = lambda: Reading(path, fails_at_some)  # noqa: E731
    assert planned(compared(make, collate_fn=kept, batch_size=4, shuffle=True, epochs=3, ours={"buffer": BUFFER}))


def test_calls_that_no_rule_says_are_read_as_asked(path: str) -> None:
    epoch = [0]

    def body(file: Any, i: int) -> Any:
        epoch[0] += i == 0
        return (file["flat"][i], file["x"][i]) if epoch[0] < 2 else (file["x"][(7 * i) % SAMPLES], file["y"][i])

    def made() -> Any:
        epoch[0] = 0
        return Reading(path, body)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compared(made, collate_fn=kept, batch_size=4, epochs=5, ours={"buffer": BUFFER})


def test_a_table_that_changes_between_epochs_is_looked_up_anew(path: str) -> None:
    def batches(kind: Any, **more: Any) -> Any:
        data = LookedUp(path, np.array(order(3)))
        loader = kind(data, batch_size=4, collate_fn=kept, **more)
        for epoch in range(5):
            data.order[:] = order(3 + epoch // 2)
            yield [told(batch) for batch in loader]
        if kind is DataLoader:
            assert planned(loader)
            assert answered(loader)[1] < 60

    assert list(batches(DataLoader, buffer=BUFFER)) == list(batches(torch.utils.data.DataLoader))


def test_an_epoch_that_is_left_early_two_at_a_time_and_one_that_is_resumed(path: str) -> None:
    def batches(kind: Any, **more: Any) -> Any:
        seed_all(2)
        loader = kind(Reading(path, by_rows), batch_size=6, shuffle=True, **more)
        yield [told(batch) for batch in loader]
        for number, batch in enumerate(loader):
            yield told(batch)
            if number == 5:
                break
        for one, other in zip(loader, loader, strict=True):
            yield told(one), told(other)
        yield draws()

    assert list(batches(DataLoader, buffer=BUFFER)) == list(batches(torch.utils.data.DataLoader))

    def made() -> Any:
        generator = {"sampler": PlanSampler(range(SAMPLES), 1, 0, seed=4)}
        return DataLoader(Reading(path, by_rows), 6, buffer=BUFFER, **generator)

    loader, first, later = made(), made(), made()
    whole = [told(batch) for _ in range(3) for batch in loader]
    assert planned(loader)
    list(first)
    batches_of_it = iter(first)
    for _ in range(9):
        next(batches_of_it)
    for one in (later, first):  # a new loader, which has not learned yet, and one that has
        one.load_state_dict(first.state_dict())
        assert [told(batch) for batch in one] == whole[25:32]


def test_memory_stays_within_the_buffer(path: str) -> None:
    loader = DataLoader(Reading(path, by_rows), batch_size=4, shuffle=True, buffer=BUFFER)
    for _ in range(4):
        for _ in loader:
            held = loader._adopted.held  # type: ignore[union-attr]
            running = loader._buffered.running
            assert held.nbytes + (0 if running is None else running.nbytes) <= 3 << 20
    assert planned(loader)
    assert loader.stats()["peak_bytes"] <= 3 << 20
    loader.close()
    assert loader._buffered.running is None


def test_what_all_samples_read_is_a_part_of_the_buffer(path: str) -> None:
    body = BODIES["what is the same for all"]
    loader = compared(lambda: Reading(path, body), batch_size=4, shuffle=True, ours={"buffer": "2MiB"}, epochs=3)
    beside = SAMPLES * 8
    assert loader._adopted.held.nbytes == beside  # type: ignore[union-attr]
    assert loader._buffered.memory.nbytes == (2 << 20) - beside


class WithState(Reading):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def at_places_apart(file: Any, i: int) -> Any:
    return file["flat"][i], file["flat"][SAMPLES - 1 - i]


NOT_PLANNED: dict[str, tuple[type[Reading], Any, dict[str, Any], str]] = {
    "a small buffer": (Reading, by_rows, {"buffer": "1MiB"}, "give at least buffer="),
    "no buffer": (Reading, by_rows, {}, ""),
    "workers": (Reading, by_rows, {"buffer": "16MiB", "num_workers": 1}, ""),
    "a state": (WithState, by_rows, {"buffer": "16MiB"}, "it has a state of its own"),
    "places apart": (Reading, at_places_apart, {"buffer": "16MiB"}, "at places that do not follow from each other"),
    "a file that changes": (Reading, by_rows, {"buffer": "16MiB"}, "its file was changed"),
}


@pytest.mark.parametrize("case", NOT_PLANNED)
def test_what_cannot_be_planned_is_read_ahead_as_before(path: str, case: str, caplog: Any, tmp_path: Path) -> None:
    kind, body, options, said = NOT_PLANNED[case]
    name = tmp_path / "copy.h5"
    name.write_bytes(Path(path).read_bytes())
    settle(name)
    loader: Any = DataLoader(kind(str(name), body), batch_size=8, **options)
    theirs = torch.utils.data.DataLoader(kind(str(name), body), batch_size=8)
    with caplog.at_level(logging.INFO, "solar"):
        for epoch in range(3):
            if case == "a file that changes" and epoch == 1:
                name.touch()
            assert [told(one) for one in loader] == [told(one) for one in theirs]
    assert not planned(loader)
    assert said in caplog.text
    if case in ("a small buffer", "no buffer", "a state", "places apart"):
        assert answered(loader)[0] > SAMPLES


class Own:
    """A sampler of the user's."""

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices

    def __iter__(self) -> Any:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def test_arguments_for_plans_warn_only_where_they_have_no_effect(path: str) -> None:
    for_plans: dict[str, Any] = {"epochs": 3, "exchange": "read"}
    with warnings.catch_warnings(action="error"):
        loader: Any = DataLoader(Reading(path, by_rows), batch_size=8, buffer=BUFFER, **for_plans)
        for _ in range(3):
            list(loader)
    assert planned(loader)
    with pytest.warns(UserWarning, match=r"epochs=3, exchange='read' have no effect"):
        DataLoader(Reading(path, by_rows), batch_size=8, **for_plans)
    loader = DataLoader(Reading(path, by_rows), batch_size=8, sampler=Own(order(3)), buffer=BUFFER, **for_plans)
    list(loader)
    with pytest.warns(UserWarning, match=r"epochs and exchange have no effect over Reading: its sampler may draw"):
        list(loader)
    with warnings.catch_warnings(action="error"):
        list(loader)


def test_a_loader_is_pickled_without_its_plan(path: str) -> None:
    loader = DataLoader(Reading(path, by_rows), batch_size=8, buffer=BUFFER)
    first = [[told(one) for one in loader] for _ in range(2)]
    loader.dataset.body = loader.dataset.file = None  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(loader))
    again.dataset.body = by_rows
    assert [[told(one) for one in again] for _ in range(3)] == [first[0]] * 3
    assert planned(again)


def test_damaged_bytes_are_h5pys_error(path: str, tmp_path: Path) -> None:
    name = tmp_path / "damaged.h5"
    name.write_bytes(Path(path).read_bytes())
    with h5py.File(name) as file:
        where = file["x"].id.get_chunk_info(3).byte_offset
    with name.open("r+b") as raw:
        raw.seek(where + 8)
        raw.write(b"damaged" * 4)
    settle(name)
    make = lambda: Reading(str(name), by_rows)  # noqa: E731
    loader = compared(make, collate_fn=kept, batch_size=5, epochs=3, ours={"buffer": BUFFER})
    assert answered(loader)[0] > SAMPLES


@pytest.mark.parametrize("broken", ["BatchRows.add", "AdoptedPlans._look", "AnsweringMaker._rows"])
def test_an_error_of_ours_ends_reading_ahead_and_no_training(
    path: str, broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **more: Any) -> Any:
        raise ZeroDivisionError("as it may be")

    monkeypatch.setattr(f"solar.loader.adopt_plans.{broken}", fails)
    make = lambda: Reading(path, by_rows)  # noqa: E731
    with pytest.warns(UserWarning, match="buffer has no effect over Reading: reading ahead ended by an error"):
        loader = compared(make, collate_fn=kept, batch_size=5, shuffle=True, epochs=3, ours={"buffer": BUFFER})
    assert "reading ahead ended by an error: as it may be" in loader.report()
    assert "ended by an error" in caplog.text


def test_a_device_gets_the_batches(path: str) -> None:
    expected = [told(batch) for batch in torch.utils.data.DataLoader(Reading(path, by_rows), batch_size=8)]
    with DataLoader(Reading(path, by_rows), batch_size=8, buffer=BUFFER, device="cpu") as loader:
        for _ in range(3):
            assert [told(batch) for batch in loader] == expected
        assert planned(loader)


def test_windows_anywhere_have_the_rows_there_are() -> None:
    starts = np.random.default_rng(1).integers(0, 10, 200)
    found = windows_at(starts, 10, (0, 1, 2)).rows(np.arange(200))
    assert np.array_equal(found, np.clip(starts[:, None] + np.arange(3), 0, 9))


# --- with a service, and over ranks ----


def test_a_service_reads_for_it(path: str, tmp_path: Path) -> None:
    expected = [told(batch) for batch in torch.utils.data.DataLoader(Reading(path, by_rows), batch_size=8)]
    with serving(path, where=tmp_path, memory=8 << 20) as service:
        loader: Any = DataLoader(Reading(path, by_rows), batch_size=8, service=str(service.path))
        for _ in range(3):
            assert [told(batch) for batch in loader] == expected
        said = re.search(r"A service read (\d+) batches for this training", str(loader.report()))
        assert said is not None
        assert int(said[1]) > SAMPLES // 8, "of two epochs; a late one is read alone"
        loader.close()
    loader = DataLoader(Reading(path, by_rows), batch_size=8, service="auto")
    for _ in range(3):  # there is none any more
        assert [told(batch) for batch in loader] == expected
    assert answered(loader)[0] > 2 * SAMPLES


RANKS = """
import json, logging, sys
import h5py, numpy as np, torch, torch.distributed as dist
from torch.utils.data import DistributedSampler
from solar import DataLoader
from solar.loader import adopt
from adopt_kit import told
from test_adopt import Reading, by_rows

adopt.CHEAP, adopt.BAD_CHECKS = 0.0, 1 << 30
path, case = sys.argv[1], sys.argv[2]
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()

def rows(file, i):
    return by_rows(file, i if case != "unlike" or rank == 0 else int(file["y"].shape[0]) - 1 - i)

data, theirs = Reading(path, rows), Reading(path, rows)
ours = DistributedSampler(data, shuffle=True, seed=5)
buffer = {"none": None, "small": "256KiB"}.get(case, "8MiB")
loader = DataLoader(data, 4, sampler=ours, buffer=buffer, exchange="off" if case == "off" else "auto")
plain = torch.utils.data.DataLoader(theirs, 4, sampler=DistributedSampler(theirs, shuffle=True, seed=5))
same, told_ = True, []
logging.getLogger("solar").setLevel(logging.INFO)
logging.getLogger("solar").addHandler(handler := logging.Handler())
handler.emit = lambda record: told_.append(record.getMessage())
for epoch in range(4):
    for sampler in (ours, plain.sampler):
        sampler.set_epoch(epoch)
    if case == "leaves" and rank == 1 and epoch == 2:
        loader._adopted.leave("as a test wants it")
    same &= [told(one) for one in loader] == [told(one) for one in plain]
stats, counts = loader.stats(), loader._adopted.counts
group = loader._buffered.memory.rank_group
found = {"rank": rank, "same": same, "bytes": stats["bytes"], "answered": counts.answered, "asked": counts.asked,
         "together": group is not None, "mates": 0 if group is None else len(group.names), "said": told_,
         "nbytes": 0 if loader._buffered.running is None else loader._buffered.running.nbytes}
loader.close()
print(json.dumps(found))
dist.destroy_process_group()
"""


NBYTES = SAMPLES * (8 * 6 * 4 + 300 * 20 * 8 + 8)  # that a sample of `by_rows` has
SAID = {
    "unlike": "the ranks read by different rules",
    "leaves": "another rank cannot plan",
    "small": "give at least buffer",
}


@pytest.mark.slow(but=["1-together"])
@pytest.mark.parametrize("case", ["together", "unlike", "leaves", "off", "small", "none"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_read_together_where_all_of_them_know_what_they_read(path: str, case: str, nodes: int) -> None:
    apart = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"} if nodes == 2 else {}
    found = under_gloo(2, RANKS, path, case, env=apart, seconds=200, fresh=True)
    assert [one["same"] for one in found] == [True, True]
    assert all(one["answered"] > 3 * one["asked"] for one in found if case in ("together", "off", "none"))
    together = case in ("together", "leaves")
    assert [one["together"] for one in found] == [together, together]
    if together:
        assert {one["mates"] for one in found} == {2 // nodes}
        assert sum(one["bytes"] for one in found) < 1.2 * nodes * NBYTES, "each node reads each row once"
        assert sum(one["nbytes"] for one in found) <= nodes * (8 << 20)
    said = SAID.get(case, "")
    assert not said or any(said in line for one in found for line in one["said"])
