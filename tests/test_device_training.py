"""Models over batches on a device: compiled, in DDP, sharded by FSDP2, profiled. The device is the host, or pretends.

tests/test_device_cuda.py does the same on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from device_kit import Eager, Mark, loaders, pretend, pretended, write

from solar import DataLoader, Field, H5Dataset

_ = pretended  # a fixture
FIELDS = {"x": "x", "counts": Field("counts", axes=(2, 0, 1), dtype="float32", mean=2)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("training"))


@pytest.mark.slow(every=4)
@pytest.mark.filterwarnings("ignore:.*jit.script:DeprecationWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")  # torch's own, on Python 3.13.0
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("decode", ["host", "device"])
def test_a_compiled_model_is_compiled_once_and_gives_the_same(
    pretended: str, static: bool, decode: str, path: str
) -> None:
    compiled: list[Any] = []

    def backend(module: Any, inputs: list[torch.Tensor]) -> Any:
        compiled.append(inputs)
        return module.forward

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(24 * 40, 3))
    torch._dynamo.reset()
    fast = torch.compile(model, backend=backend)
    host, there = loaders(H5Dataset(path, FIELDS), 8, True, drop_last=True, static=static, decode=decode)
    for _epoch in range(2):
        for one, two in zip(host, there, strict=True):
            assert torch.equal(model(one["x"]), fast(two["x"]))
    assert len(compiled) == 1  # shapes, types and order of memory stay


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def parallel(kind: str, model: Any) -> Any:
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no FSDP2")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    return fsdp.fully_shard(model, mesh=mesh)


def losses(model: Any, loader: Any) -> list[float]:
    optimiser, found = torch.optim.SGD(model.parameters(), 1e-3), []
    for batch in loader:
        optimiser.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
@pytest.mark.parametrize("static", [False, True])
def test_parallel_models_learn_from_batches_on_a_device_what_one_model_does(
    kind: str, static: bool, path: str, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, Eager)

    def fresh() -> Any:
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Conv2d(5, 4, 3), torch.nn.Flatten(), torch.nn.Linear(96, 2))

    host, there = loaders(H5Dataset(path, FIELDS["counts"]), 8, True, static=static)
    want, got = losses(fresh(), host), losses(parallel(kind, fresh()), there)
    assert len(want) == 6 and want[-1] < want[0]
    assert got == pytest.approx(want, rel=1e-5)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears:UserWarning")  # torch's own
def test_the_profiler_shows_where_the_loop_waits_and_copies(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Eager)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        list(DataLoader(H5Dataset(path, "x"), 8, device="cpu"))
        list(DataLoader(H5Dataset(path, "x", transform=abs), 8, device="cpu"))  # which lands in the loop
    counted = {one.key: one.count for one in seen.key_averages()}
    assert counted["solar: wait for a batch to land"] == 6
    assert counted["solar: to the device"] == 6


def test_what_copying_and_decoding_took_is_told_apart_by_the_devices_clock(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Timed(Mark):
        def __init__(self, device: Eager) -> None:
            super().__init__(device)
            self.at = time.perf_counter()

        def elapsed_time(self, end: Any) -> float:
            return float(1e3 * (end.at - self.at))

    class Clocked(Eager):
        def mark(self) -> Mark:
            return Timed(self)

        def there(self, host: torch.Tensor) -> torch.Tensor:
            time.sleep(0.01)
            return super().there(host)

    pretend(monkeypatch, Clocked)
    loader = DataLoader(H5Dataset(path, "x"), 8, device="cpu", decode="device")
    list(loader)
    stats = loader.stats()
    assert stats["device_copy_seconds"] >= 6 * 0.01  # each batch is one copy
    assert stats["device_decode_seconds"] > 0


def test_devices_without_streams_of_ours_are_copied_to_by_to(path: str) -> None:
    """MPS is such a one, and is not here; torch's device of shapes alone is another."""
    host, _ = loaders(H5Dataset(path, {"x": "x", "text": "text"}), 8)
    there = DataLoader(H5Dataset(path, {"x": "x", "text": "text"}), 8, device="meta", dtype="bfloat16")
    for one, two in zip(host, there, strict=True):
        assert two["x"].device.type == "meta" and two["x"].dtype == torch.bfloat16
        assert two["x"].shape == one["x"].shape and two["text"] == one["text"]


@pytest.mark.skipif(not torch.backends.mps.is_available(), reason="needs an MPS device")
def test_batches_on_mps_are_those_of_to(path: str) -> None:
    host, _ = loaders(H5Dataset(path, "x"), 8)
    for one, two in zip(host, DataLoader(H5Dataset(path, "x"), 8, device="mps"), strict=True):
        assert torch.equal(one, two.cpu())
