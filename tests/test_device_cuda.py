"""DataLoader(device="cuda") on a CUDA device: what tests/test_device.py pretends, and what only a device can show."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed
from decode_kit import CASES, FORGED, LITTLE_SCRATCH, case_of, rows_of
from device_kit import same, write

from solar import DataLoader, Field, H5Dataset
from solar.device import copier as landing
from solar.device import ring
from solar.device.landed import LandedBatches

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

FIELDS = {
    "x": "x",
    "normalised": Field("counts", mean=2, std=0.3),
    "deep": ("y", {"half": Field("counts", dtype="float16", axes=(2, 0, 1)), "turned": Field("x", axes=(1, 0))}),
    "text": "text",
}
SLOW = 20_000_000  # cycles: some ten milliseconds of a kernel that does nothing


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("cuda"))


def both(path: str, fields: Any, batch: int = 6, **options: Any) -> Iterator[tuple[Any, Any]]:
    made = [torch.Generator().manual_seed(3) for _ in range(2)]
    host = DataLoader(H5Dataset(path, fields), batch, True, generator=made[0])
    there = DataLoader(H5Dataset(path, fields), batch, True, generator=made[1], device="cuda", **options)
    return zip(host, there, strict=True)


def moved(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: moved(part) for key, part in batch.items()}
    if isinstance(batch, list):
        return [moved(part) for part in batch]
    return batch.to("cuda") if isinstance(batch, torch.Tensor) else batch


@pytest.mark.parametrize("options", [{}, {"static": True}, {"num_workers": 2}, {"buffer": "1MiB"}], ids=str)
@pytest.mark.parametrize("adopted_from", [0, ring.ADOPTED_FROM])
def test_batches_on_a_gpu_are_those_of_to_bit_for_bit(
    options: dict[str, Any], adopted_from: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "ADOPTED_FROM", adopted_from)
    pairs = list(both(path, FIELDS, **options)) if "static" not in options else both(path, FIELDS, **options)
    for one, two in pairs:
        assert same(moved(one), two)


@pytest.mark.parametrize("options", [{}, {"static": True}, {"dtype": "bfloat16"}, {"buffer": "1MiB"}], ids=str)
@pytest.mark.parametrize("fields", ["x", {"n": Field("counts", mean=2, std=0.3), "turned": Field("x", axes=(1, 0))}])
def test_batches_that_native_code_copies_are_those_of_to(fields: Any, options: dict[str, Any], path: str) -> None:
    made = [torch.Generator().manual_seed(3) for _ in range(2)]
    host = DataLoader(H5Dataset(path, fields), 2, True, generator=made[0])
    there = DataLoader(H5Dataset(path, fields), 2, True, generator=made[1], device="cuda", **options)
    for _epoch in range(3):
        batches = iter(there)
        for number, (one, two) in enumerate(zip(host, batches, strict=True)):
            torch.cuda._sleep(SLOW // 20)
            one = moved(one)
            if "dtype" in options:
                one = {key: part.bfloat16() for key, part in one.items()} if isinstance(one, dict) else one.bfloat16()
            assert same(one, two)
            assert number or isinstance(batches._direct.feed, LandedBatches)  # type: ignore[attr-defined]


@pytest.mark.parametrize("decode", ["host", "device"])
@pytest.mark.parametrize("resident", ["60kB", "50%"])
def test_batches_of_samples_that_stay_on_a_gpu_are_the_same(decode: Any, resident: str, path: str) -> None:
    if decode == "device":
        pytest.importorskip("triton")
    made = [torch.Generator().manual_seed(3) for _ in range(2)]
    host = DataLoader(H5Dataset(path, FIELDS), 6, True, generator=made[0])
    device: dict[str, Any] = {"device": "cuda", "decode": decode, "resident": resident}
    there = DataLoader(H5Dataset(path, FIELDS), 6, True, generator=made[1], **device)
    for _epoch in range(3):
        for one, two in zip(host, there, strict=True):
            assert same(moved(one), two)
    stats = there.stats()
    assert stats["device_hits"] == 2 * stats["device_resident_samples"] > 0
    if resident == "60kB":
        assert stats["device_resident_bytes"] <= 60_000


def test_batches_decoded_on_a_gpu_are_those_of_the_host_bit_for_bit(path: str) -> None:
    pytest.importorskip("triton")
    for one, two in both(path, FIELDS, decode="device"):
        assert same(moved(one), two)
    for one, two in both(path, "x", decode="device", dtype="bfloat16"):
        assert torch.equal(one.to(torch.bfloat16).cuda(), two)


@pytest.mark.parametrize("name", [*CASES, *FORGED])
def test_kernels_on_a_gpu_give_the_bits_of_the_hosts_decoder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from solar.device.kernels import launch

    monkeypatch.setattr(launch, "LAUNCH_SCRATCH", LITTLE_SCRATCH)
    case = case_of(name)
    found = case.made(*rows_of(case.chunks), lambda rows: torch.from_numpy(rows).cuda())
    right = CASES[FORGED.get(name, name)].here()
    assert np.array_equal(found, right[: len(found)]) == (name not in FORGED)


@pytest.mark.parametrize("options", [{}, {"buffer": "1MiB"}], ids=str)
def test_batches_are_read_to_memory_that_is_pinned_and_not_copied_on_the_host(
    options: dict[str, Any], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "ADOPTED_FROM", 0)
    loader = DataLoader(H5Dataset(path, "x"), 6, True, drop_last=True, device="cuda", **options)
    for _epoch in range(9):  # until as much memory was adopted as batches take at once
        iterator = iter(loader)
        assert len(list(iterator)) == len(loader)
        if (copied := iterator._starter.landing.ring.staged_nbytes) == 0:  # type: ignore[attr-defined]
            break
    assert copied == 0 and all(one.is_pinned() for one in loader._on_device._adopted._memory)


def test_copying_and_decoding_are_timed_on_the_device(path: str) -> None:
    pytest.importorskip("triton")
    loader = DataLoader(H5Dataset(path, "x"), 6, device="cuda", decode="device")
    for _batch in loader:
        torch.cuda.synchronize()
    loader.close()
    stats = loader.stats()
    assert stats["device_copy_seconds"] > 0 and stats["device_decode_seconds"] > 0


def test_memory_of_a_batch_is_not_used_again_while_a_kernel_may_read_it(path: str) -> None:
    """Each batch is dropped at once, with a kernel that reads it waiting behind a slow one."""
    sums, want = [], []
    for one, two in both(path, "x", batch=1):
        torch.cuda._sleep(SLOW)
        sums.append(two.double().sum())
        want.append(one.double().sum())
        del two
    assert torch.allclose(torch.stack(sums).cpu(), torch.stack(want))


def test_what_waits_on_a_gpu_is_bounded_and_let_go(path: str) -> None:
    before = torch.cuda.memory_allocated()
    loader = DataLoader(H5Dataset(path, "x"), 4, device="cuda", ahead=9)
    nbytes = 4 * 24 * 40 * 4
    for _batch in loader:
        torch.cuda.synchronize()
    stats = loader.stats()
    assert stats["device_peak_bytes"] <= landing.COPIES_AHEAD * nbytes
    assert stats["device_copy_seconds"] > 0 and stats["device_bytes"] == 41 * 24 * 40 * 4
    loader.close()
    del _batch, loader
    gc.collect(), torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_a_graph_captured_over_static_batches_can_be_replayed(path: str) -> None:
    loader = DataLoader(H5Dataset(path, "x"), 8, drop_last=True, device="cuda", static=True)
    total = torch.zeros((), device="cuda")
    batch = next(iter(loader))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        total += batch.sum()
    torch.cuda.current_stream().wait_stream(side)
    total.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        total += batch.sum()
    total.zero_()
    for one in loader:
        assert one.data_ptr() == batch.data_ptr()
        graph.replay()
    want = sum(one.sum() for one in DataLoader(H5Dataset(path, "x"), 8, drop_last=True))
    assert torch.allclose(total.cpu(), torch.as_tensor(want))


def test_a_consumer_in_another_stream_than_before_gets_whole_batches(path: str) -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    made = both(path, "x", static=True)
    for number in range(4):
        with torch.cuda.stream(streams[number % 2]):
            one, two = next(made)
            torch.cuda._sleep(SLOW)
            assert torch.equal(one.cuda(), two)


@pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning", "ignore:.*jit.script:DeprecationWarning")  # torch's own
def test_compiled_models_train_on_what_lands(path: str) -> None:
    model = torch.compile(torch.nn.Linear(40, 3).cuda())
    for one, two in both(path, "x"):
        assert torch.allclose(model(one.cuda()), model(two))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_parallel_models_learn_from_what_lands_what_they_learn_from_copies(kind: str, path: str, group: None) -> None:
    fields = Field("counts", axes=(2, 0, 1), dtype="float32")
    landed = DataLoader(H5Dataset(path, fields), 8, device="cuda", channels_last=True)
    copied = (batch.cuda() for batch in DataLoader(H5Dataset(path, fields), 8))
    one, two = (torch.tensor(losses_of(kind, batches)) for batches in (landed, copied))
    assert len(one) == 6 and torch.allclose(one, two, rtol=1e-3)


def losses_of(kind: str, batches: Iterable[torch.Tensor]) -> list[float]:
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Conv2d(5, 4, 3), torch.nn.Flatten(), torch.nn.LazyLinear(2)).cuda()
    model(torch.zeros(1, 5, 6, 8, device="cuda"))
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        fsdp = pytest.importorskip("torch.distributed.fsdp")
        if not hasattr(fsdp, "fully_shard"):
            pytest.skip("this torch has no FSDP2")
        fsdp.fully_shard(model)
    optimiser = torch.optim.SGD(model.parameters(), 1e-3)
    losses = []
    for batch in batches:
        optimiser.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses
