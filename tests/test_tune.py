"""`solar tune`: gradients of compressed inputs beside their noise, and the bound that follows."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from store_kit import smooth

from solar import compress, read
from solar.cli import main
from solar.io.channels.progress import Phase
from solar.io.codec import grid
from solar.io.codec.codec import Codec
from solar.training.as_stored import AsStored, Effort
from solar.training.bound_search import seeded
from solar.training.gradient_noise import NUMBERS_KEPT, Taker, change_of, noise_of

Make = Callable[..., str]
Run = Callable[..., dict[str, Any]]

MODULE = """
import torch
from torch import nn

WEIGHTS = torch.linspace(-1, 1, 4096, dtype=torch.float64)

class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(WEIGHTS.clone())
    def forward(self, x):
        return x.flatten(1) @ self.weight

class Deaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
    def forward(self, x):
        return 0 * x.flatten(1).sum(1) + self.bias

def deep():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0)
    )

def with_bias():
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 1), nn.Flatten(0))

def both(model, batch):
    return (model(batch["x"].float() + batch["other"].float()) - batch["y"]).abs().mean()

def projected(model, batch):
    return model(batch["x"].float()).mean()

def constant(model, batch):
    return torch.zeros(())

def many(model, batch):
    return model(batch["x"])

def broken(model, batch):
    return batch["nothing there"]

def number():
    return 3

value = 3
"""


@pytest.fixture(autouse=True)
def _user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the user's module in it; what was imported from there is forgotten."""
    (tmp_path / "users_model.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("users_model", None)


@pytest.fixture
def tuned(capsys: pytest.CaptureFixture[str]) -> Run:
    """What the command says as JSON."""

    def run(path: str, line: str) -> dict[str, Any]:
        assert main(["tune", path, *shlex.split(line), "--json"]) == 0
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return run


def fields(samples: int = 64) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(0)
    return {"x": smooth(samples, 64, 64), "y": rng.normal(size=samples)}


def gradients(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Of (w x - y)² by w, sample by sample."""
    flat = x.reshape(len(x), -1).astype("f8")
    return 2 * (flat @ np.linspace(-1, 1, 4096) - y)[:, None] * flat


def test_changes_noise_and_ratios_are_those_of_the_file_that_compress_writes(
    make: Make, tuned: Run, tmp_path: Path
) -> None:
    data = fields()
    path, bounds = make("a.h5", **data), ("1e-4", "1e-3", "1e-2")
    line = "--model users_model:Linear --loss mse --input x --target y --steps 0 --batch-size 1 --batches 64"
    (field,) = tuned(path, f"{line} --rel {','.join(bounds)}")["fields"]
    exact = gradients(data["x"], data["y"])
    noise = np.sqrt(exact.var(axis=0, ddof=1).sum())
    (state,) = field["states"]
    assert state["noise"] == pytest.approx(noise)
    assert state["mean_gradient"] == pytest.approx(np.linalg.norm(exact.mean(axis=0)))
    assert field["rungs"][0]["setting"] == "lossless"
    for bound, rung in zip(bounds, field["rungs"][1:], strict=True):
        ((part, nbytes),) = compress(path, tmp_path / "b.h5", {"x": f"rel={bound}"}, force=True).parts
        back = read(tmp_path / "b.h5", "x")
        off = gradients(back, data["y"]) - exact
        assert rung["changes"] == [pytest.approx(np.sqrt(np.square(off).sum(axis=1).mean()) / noise)]
        total = off.sum(axis=0)
        shared = max(0.0, (total @ total - np.square(off).sum()) / (64 * 63)) ** 0.5
        assert rung["shared"] == [pytest.approx(shared / noise, abs=1e-9)]
        assert (rung["bound"], rung["ratio"]) == (part.codec.bound, pytest.approx(part.nbytes / nbytes))
        assert rung["rms_error"] == pytest.approx(np.sqrt(np.square(back - data["x"].astype("f8")).mean()))
        assert 0 < rung["rms_error"] <= rung["bound"]


def test_the_bound_recommended_is_the_last_one_below_the_fraction_and_the_command_uses_it(
    make: Make, tuned: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make("a.h5", **fields())
    line = (
        "--model users_model:Linear --loss mse --input x --target y --steps 0 --batch-size 4 --rel 1e-5,1e-4,1e-3,1e-2"
    )
    rungs = tuned(path, line)["fields"][0]["rungs"]
    shares = [rung["changes"][0] for rung in rungs]
    assert shares == sorted(shares) and shares[0] == 0 < shares[1]
    between = (shares[2] + shares[3]) / 2
    answer = tuned(path, f"{line} --fraction {between}")
    assert answer["fields"][0]["recommended"] == "rel=0.0001"
    small = str(tmp_path / "a-small.h5")
    assert answer["command"] == shlex.join(["solar", "compress", path, small, "--field", "x:rel=0.0001"])
    assert main(shlex.split(answer["command"])[1:]) == 0
    assert Path(small).exists()
    capsys.readouterr()
    assert tuned(path, f"{line} --fraction {shares[1] / 2}")["fields"][0]["recommended"] == "lossless"
    assert main(["tune", path, *line.split(), "--fraction", "1e9", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert "recommended: rel=0.01, the last to change them by at most" in shown.out
    assert "larger ones may do, too" in shown.out
    assert shown.err == ""


@pytest.mark.slow(every=2)
@pytest.mark.parametrize(
    ("flag", "stored", "unit"), [("", 2.5, "unpacked values"), (" --stored", 50, "stored numbers")]
)
def test_bounds_of_packed_fields_are_in_the_unit_that_is_said(
    flag: str, stored: float, unit: str, make: Make, tuned: Run, tmp_path: Path
) -> None:
    data = fields()
    data["x"] = (data["x"] * 100).astype("i2")
    path = make("a.h5", **data)
    with h5py.File(path, "r+") as file:
        file["x"].attrs["scale_factor"] = 20.0
    line = "--model users_model:Linear --loss mse --input x --target y --steps 0 --batch-size 1 --batches 64 --abs 50"
    (field,) = tuned(path, line + flag)["fields"]
    rung = field["rungs"][1]
    ((part, _),) = compress(path, tmp_path / "b.h5", {"x": rung["setting"]}).parts
    assert (part.codec.bound, rung["bound"], field["unit"]) == (stored, 50, unit)
    off = np.square(read(tmp_path / "b.h5", "x").astype("f8") - data["x"]).mean() ** 0.5
    assert rung["rms_error"] == pytest.approx(off * (1 if flag else 20))


def test_a_model_that_ignores_its_input_may_have_any_bound(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    path = make("a.h5", **fields(16))
    line = "--model users_model:Deaf --loss mae --input x --target y --batch-size 4 --steps 2 --abs 0.1,10"
    assert main(["tune", path, *line.split()]) == 0
    shown = capsys.readouterr().out
    assert "the model ignores this input: no bound changes its gradients" in shown
    assert "recommended: abs=10" in shown


def test_counts_are_told_their_sigma_and_that_lossless_is_nearly_free(
    make: Make, capsys: pytest.CaptureFixture[str], tuned: Run
) -> None:
    rng = np.random.default_rng(1)
    counts = rng.poisson(20, (64, 6, 6))
    path = make("a.h5", x=counts.astype("f4"), y=rng.normal(size=64))
    line = "--model users_model:with_bias --loss mse --input x --target y --batch-size 4 --steps 0 --abs 0.4,2"
    (field,) = tuned(path, f"{line} --fraction 1e-6")["fields"]
    assert field["whole"] and field["sigma"] == pytest.approx(np.sqrt(counts.mean()))
    assert (field["rungs"][1]["rms_error"], field["recommended"]) == (0, "lossless")
    assert main(["tune", path, *line.split(), "--fraction", "1e-6"]) == 0
    shown = capsys.readouterr().out
    assert f"counts have Poisson noise: sigma is {np.sqrt(counts.mean()):.3g} as" in shown
    assert "recommended: lossless. These are whole numbers" in shown


def test_of_labels_lossless_is_recommended(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    values = np.where(np.random.default_rng(0).random((16, 6, 6)) < 0.5, np.float32(-9999), np.float32(0.5))
    path = make("a.h5", x=values, y=np.random.default_rng(1).normal(size=16))
    line = "--model users_model:with_bias --loss mse --input x --target y --batch-size 2 --steps 0 --abs 0.3"
    with h5py.File(path, "r+") as file:
        file["x"].attrs["flag_values"] = np.array([0.5], "f4")
    assert main(["tune", path, *line.split()]) == 0
    shown = capsys.readouterr().out
    assert "A bound would make others of them: its values are flags (flag_values)" in shown
    assert "--field x:lossless" in shown


def test_counts_are_drawn_anew_with_the_spread_that_poisson_has(make: Make, tuned: Run) -> None:
    counts = np.random.default_rng(1).poisson(20, (64, 6, 6))
    line = "--model users_model:with_bias --loss users_model:projected --input x --batch-size 4 --steps 0 --abs 2"
    (field,) = tuned(make("a.h5", x=counts.astype("u1")), line)["fields"]
    change = field["anew"][0] * field["states"][0]["noise"]  # of a gradient that is the batch's mean
    assert change**2 == pytest.approx(counts.sum() / 4**2 / 16, rel=0.2)
    (field,) = tuned(make("b.h5", x=counts - 20.0), line)["fields"]
    assert field["anew"] is field["sigma"] is None and field["whole"]


@pytest.mark.slow
def test_what_solar_compressed_before_is_told(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], phases: list[Phase]
) -> None:
    path, small = make("a.h5", **fields()), str(tmp_path / "small.h5")
    compress(path, small, {"x": "rel=1e-3"})
    line = "--model users_model:Linear --loss mse --input x --target y --batch-size 8 --steps 2 --rel 1e-2"
    assert main(["tune", path, *line.split()]) == 0
    assert capsys.readouterr().err == ""
    assert main(["tune", small, *line.split()]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"solar: {small}: solar compressed x already: the answer leaves out by how much")
    told = {one.text(1.0) for one in phases}
    assert "training: 1 of 2 steps, 1 s left" in told
    assert "taking gradients for 2 bounds on x: 7 of 8 batches, 1 s left" in told


def test_random_numbers_are_put_back_on_every_kind_of_device(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = ["before"]
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: kept[-1])  # which takes no device, as others' do
    monkeypatch.setattr(torch.mps, "set_rng_state", kept.append)
    monkeypatch.setattr(torch.random, "manual_seed", torch.default_generator.manual_seed)
    before = torch.get_rng_state()
    with pytest.raises(KeyError), seeded("mps", 3):
        first = torch.rand(2)
        raise KeyError
    assert kept == ["before", "before"]
    with seeded("cpu", 3):
        assert torch.equal(torch.rand(2), first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_a_comparison_is_with_the_same_draws_of_dropout_and_training_leaves_the_first_state_alone(
    make: Make, tuned: Run
) -> None:
    rng = np.random.default_rng(1)
    path = make("a.h5", x=rng.poisson(20, (64, 6, 6)), y=rng.normal(size=64).astype("f4"))
    line = "--model users_model:deep --loss mse --input x --target y --batch-size 8 --batches 6 --abs 0.4,5"
    (at_once,) = tuned(path, f"{line} --steps 0")["fields"]
    (later,) = tuned(path, f"{line} --steps 3")["fields"]
    assert [state["name"] for state in later["states"]] == ["at first", "after 3 steps"]
    assert later["states"][0] == at_once["states"][0] != later["states"][1]
    unchanged, changed = later["rungs"][1:]
    assert unchanged["changes"] == [0, 0]
    assert min(changed["changes"]) > 0
    assert changed["changes"][:1] == at_once["rungs"][2]["changes"]


def test_fields_are_changed_one_at_a_time_by_a_loss_of_the_users(make: Make, tuned: Run) -> None:
    data = {"x": smooth(64, 6, 6), "group/other": smooth(64, 6, 6, seed=1, dtype="f8"), "y": np.zeros(64, "f4")}
    before, drawn = list(sys.path), torch.random.get_rng_state()
    line = "--model users_model:with_bias --loss users_model:both --input x group/other --target y --batch-size 4"
    answer = tuned(make("a.h5", **data), f"{line} --steps 0 --rel 1e-3 --fraction 100")
    assert [field["name"] for field in answer["fields"]] == ["/x", "/group/other"]
    assert "x:rel=0.001,group/other:rel=0.001" in answer["command"]
    assert sys.path == before
    assert torch.equal(torch.random.get_rng_state(), drawn)


def test_weights_come_from_a_state_dict_and_from_nothing_that_could_run(
    make: Make, tuned: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    data = fields()
    path = make("a.h5", **data)
    line = "--model users_model:Linear --loss mse --input x --target y --steps 0 --batch-size 1 --batches 64 --rel 1e-3"
    torch.save({"weight": torch.zeros(4096, dtype=torch.float64)}, "zeros.pt")
    (field,) = tuned(path, f"{line} --weights zeros.pt")["fields"]
    exact = -2 * data["y"][:, None] * data["x"].reshape(64, -1)
    assert field["states"][0]["name"] == "as given"
    assert field["states"][0]["noise"] == pytest.approx(np.sqrt(exact.var(axis=0, ddof=1).sum()))
    torch.save({"other": torch.zeros(3)}, "other.pt")
    torch.save({"weight": Path("x")}, "object.pt")
    for name, said in {"other.pt": "is no state_dict of this model", "object.pt": "save model.state_dict()"}.items():
        assert main(["tune", path, *line.split(), "--weights", name]) == 1
        assert said in capsys.readouterr().err


GOOD = {"model": "users_model:with_bias", "loss": "mse", "input": "x", "target": "y", "batch-size": "4"}
WRONG: dict[str, tuple[dict[str, str], str]] = {
    "no name": ({"model": "users_model"}, "write MODULE:NAME"),
    "no module": ({"model": "not_there:build"}, "there is no module not_there, in "),
    "no attribute": ({"model": "users_model:biuld"}, "users_model has no biuld, only "),
    "no function": ({"model": "users_model:value"}, "is int: name a function without arguments"),
    "no model": ({"model": "users_model:number"}, "gives int, and must give a torch.nn.Module"),
    "no such loss": ({"loss": "mce"}, "there is no --loss 'mce', only mse, mae"),
    "no target": ({"target": ""}, "compares with one target, not with 0"),
    "another shape": ({"target": "pair"}, "the model gives (4,), and pair is (4, 2): write a loss"),
    "a loss of nothing": ({"loss": "users_model:constant"}, "does not depend on the model's parameters"),
    "many losses": ({"loss": "users_model:many"}, "a tensor of shape (4,): take its mean"),
    "no dataset": ({"input": "z"}, "there is no z"),
    "other lengths": ({"target": "short"}, "must be equally long: x has 24, short has 3"),
    "two of a name": ({"input": "x group/x"}, "two fields are x"),
    "no such device": ({"device": "tpu9"}, "--device tpu9: "),
    "too few": ({"batch-size": "10"}, "2 batches say little about noise"),
    "too many": ({"batches": "7"}, "--batches 7 of --batch-size 4 need 28 samples, and there are 24"),
    "all the same": ({"target": "pair", "loss": "users_model:same"}, "the gradients of all batches are the same"),
    "not finite": ({"target": "holes"}, "is not finite as the data are"),
}


@pytest.mark.slow(every=3)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_a_line(name: str, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    with Path("users_model.py").open("a") as module:
        module.write("\ndef same(model, batch):\n    return sum(one.sum() for one in model.parameters())\n")
    changed, said = WRONG[name]
    holes = np.full(24, np.nan)
    y = np.arange(24.0)
    path = make("a.h5", x=smooth(24, 6, 6), y=y, pair=np.zeros((24, 2)), short=y[:3], holes=holes, **{"group/x": y})
    options = [f"--{key} {value}" for key, value in (GOOD | changed).items() if value]
    assert main(["tune", path, *shlex.split(" ".join(options)), "--steps", "0", "--rel", "1e-3"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("solar: ") and error.count("\n") == 1
    assert said in error


def test_an_error_of_the_users_own_code_comes_as_it_is_with_the_batch_it_was_given(make: Make) -> None:
    path = make("a.h5", x=smooth(24, 6, 6), y=np.arange(24.0))
    line = "--model users_model:with_bias --loss users_model:broken --input x --target y --batch-size 4"
    with pytest.raises(KeyError) as caught:
        main(["tune", path, *line.split()])
    (note,) = caught.value.__notes__
    assert note == "solar tune: while taking the loss of a batch of x (4, 6, 6) torch.float32, y (4,) torch.float64"


@pytest.mark.parametrize("largest", [1 << 24, 1 << 10], ids=["chunks of samples", "samples of chunks"])
def test_samples_come_from_whole_chunks_however_these_are_cut(
    largest: int, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "LARGEST_CHUNK", largest)
    values = smooth(50, 9, 7, 11)
    path, rows = make("a.h5", x=values), np.array([3, 17, 48, 49])
    with h5py.File(path, locking=False) as file, ThreadPoolExecutor(2) as pool:
        asked = [Codec("rel", 1e-3)]
        source = AsStored(path, file, "x", asked, pool=pool, threads=2, progress=lambda _: None)
        chunks, effort = source.chunks(rows), Effort()
        assert (len(source.part.chunk), source.part.grid.whole_rows) == (4, largest > 1 << 10)
        np.testing.assert_array_equal(source.samples(rows, chunks), values[rows])
        back = source.samples(rows, source.back(source.codecs[0], chunks, effort))
    assert source.codecs[0].bound == 1e-3 * (float(values.max()) - float(values.min()))
    assert 0 < np.abs(back.astype("f8") - values[rows]).max() <= source.codecs[0].bound
    assert effort.ratio > 1


def test_what_is_kept_of_long_gradients_tells_their_lengths_and_differences() -> None:
    rng, parameters = np.random.default_rng(0), 2 * NUMBERS_KEPT
    model = torch.nn.Linear(parameters, 1, bias=False)
    taker = Taker(model, lambda model, batch: model(batch["x"]).sum(), seed=3)
    rows = rng.normal(size=(12, parameters)).astype("f4")
    kept = np.array([taker.take({"x": torch.from_numpy(row)}) for row in rows])
    assert kept.shape == (12, NUMBERS_KEPT)
    exact, sketched = noise_of(rows.astype("f8")), noise_of(kept)
    assert sketched.size == pytest.approx(exact.size, rel=0.02)
    together, alone = change_of(kept - kept[::-1]), change_of(rows[:1] * np.ones((12, 1)))
    assert together.size == pytest.approx(np.sqrt(2 * parameters), rel=0.02)
    assert together.shared == pytest.approx(0, abs=together.size / 2)
    assert alone.shared == pytest.approx(alone.size)


def test_the_noise_of_few_batches_is_right_on_average_and_says_how_far_it_may_be_off() -> None:
    rng = np.random.default_rng(0)
    found = [noise_of(rng.normal(size=(16, 50)) * 3) for _ in range(200)]
    spread = np.std([noise.size for noise in found]) / np.mean([noise.size for noise in found])
    assert np.mean([noise.size**2 for noise in found]) == pytest.approx(9 * 50, rel=0.02)
    assert np.mean([noise.error for noise in found]) == pytest.approx(spread, rel=0.25)


def test_the_help_of_the_command_imports_no_torch() -> None:
    code = "import sys, solar.cli.tune; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
