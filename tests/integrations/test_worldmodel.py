"""Clips of stable-worldmodel and sequences of robomimic: what their own classes give, and what their formats say.

Each is compared with the library's class where it is installed, and always with the format as it is published, written
out slowly here.
"""

from __future__ import annotations

import importlib
import pickle
import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import torch.utils.data
from absent_kit import pretended
from far_kit import served
from kit import settle
from serve_kit import PATIENT, check, serving, together

from solar import DataLoader, H5Dataset, LayoutError, PlanSampler
from solar.integrations import worldmodel

Theirs = Callable[..., Any]

# --- stable-worldmodel: columns over all steps, and where each episode begins ----

EPISODES = (9, 0, 23, 4, 12, 31)


def write_episodes(path: Path, **more: Any) -> Path:
    """A file as HDF5Writer writes it: a step is a chunk, and each column can grow."""
    rng, total = np.random.default_rng(3), sum(EPISODES)
    columns = {
        "pixels": rng.integers(0, 255, (total, 8, 6, 3), "u1"),
        "depth": rng.random((total, 5, 4, 1), "f4"),
        "action": rng.standard_normal((total, 2)).astype("f4"),
        "proprio": rng.standard_normal((total, 4)),
        "reward": rng.random(total),
        "maps": rng.integers(0, 9, (total, 5, 4, 2), "i2"),
        "step_idx": np.arange(total),
        **more,
    }
    with h5py.File(path, "w", libver="latest") as file:
        for name, values in columns.items():
            row = np.shape(values)[1:]
            file.create_dataset(name, data=values, maxshape=(None, *row), chunks=(1, *row))
        file.create_dataset("ep_len", data=np.array(EPISODES, "i4"), maxshape=(None,))
        file.create_dataset("ep_offset", data=np.cumsum((0, *EPISODES[:-1])), maxshape=(None,))
    settle(path)
    return path


class WrittenOutClips(torch.utils.data.Dataset[Any]):
    """HDF5Dataset after the page that describes it: one clip after another, column by column."""

    def __init__(self, path: Any, num_steps: int = 1, frameskip: int = 1, transform: Any = None, **more: Any) -> None:
        self.num_steps, self.frameskip, self.transform = num_steps, frameskip, transform
        with h5py.File(path) as file:
            self.columns = {name: file[name][()] for name in file}
        lengths, offsets = self.columns.pop("ep_len"), self.columns.pop("ep_offset")
        if keys := more.get("keys_to_load"):
            self.columns = {name: self.columns[name] for name in keys}
        self.begins = []
        for length, offset in zip(lengths.tolist(), offsets.tolist(), strict=True):
            for start in range(length):
                if start + num_steps * frameskip <= length:
                    self.begins.append(offset + start)

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, index: int) -> Any:
        begin, end = self.begins[index], self.begins[index] + self.num_steps * self.frameskip
        clip = {}
        for name, values in self.columns.items():
            rows = [values[row] for row in range(begin, end) if name == "action" or (row - begin) % self.frameskip == 0]
            clip[name] = torch.from_numpy(np.stack(rows))
            if clip[name].ndim == 4 and clip[name].shape[-1] in (1, 3):
                clip[name] = clip[name].permute(0, 3, 1, 2)
        clip = clip if self.transform is None else self.transform(clip)
        if "action" in clip:
            clip["action"] = clip["action"].reshape(self.num_steps, -1)
        return clip


def their_clips() -> Theirs:
    if find_spec("stable_worldmodel") is None:
        pytest.skip("stable_worldmodel is not installed")
    hdf5 = imported("stable_worldmodel", "stable_worldmodel.data.formats.hdf5", STABLE_WORLDMODEL_NEEDS)
    return lambda path, **more: hdf5.HDF5Dataset(path=path, **more)


# --- robomimic: a group for each demonstration ----

DEMONSTRATIONS = {"demo_0": 7, "demo_2": 12, "demo_10": 5, "demo_1": 9, "demo_3": 6, "demo_11": 1}
OBS, DATASETS = ("joints", "camera"), ("actions", "rewards", "dones")


def write_demonstrations(path: Path, lengths: dict[str, int] = DEMONSTRATIONS) -> Path:
    rng = np.random.default_rng(2)
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["total"] = sum(lengths.values())
        for name, length in lengths.items():
            demo = file.create_group(f"data/{name}")
            demo.attrs["num_samples"] = length
            demo["actions"], demo["states"] = rng.random((length, 7)), rng.random((length, 9))
            demo["rewards"], demo["dones"] = rng.random(length), (np.arange(length) == length - 1).astype("i8")
            for part in ("obs", "next_obs"):
                demo[f"{part}/joints"] = rng.random((length, 9))
                image = rng.integers(0, 255, (length, 8, 8, 3), "u1")
                demo.create_dataset(f"{part}/camera", data=image, chunks=(1, 8, 8, 3), compression="gzip")
        file["mask/train"] = np.array([b"demo_10", b"demo_2", b"demo_3"])
    settle(path)
    return path


class WrittenOutSequences(torch.utils.data.Dataset[Any]):
    """SequenceDataset after its documentation: demonstration after demonstration, step by step."""

    def __init__(self, hdf5_path: Any, obs_keys: Any, dataset_keys: Any, **more: Any) -> None:
        self.path, self.obs_keys, self.dataset_keys, self.more = hdf5_path, obs_keys, dataset_keys, more
        self.before, self.behind = more.get("frame_stack", 1) - 1, more.get("seq_length", 1) - 1
        with h5py.File(hdf5_path) as file:
            names = list(file["data"])
            if mask := more.get("filter_by_attribute"):
                names = [name.decode() for name in file[f"mask/{mask}"]]
            self.places = []
            for name in sorted(names, key=lambda name: int(name[5:])):
                length = int(file[f"data/{name}"].attrs["num_samples"])
                first = 0 if more.get("pad_frame_stack", True) else self.before
                last = length if more.get("pad_seq_length", True) else length - self.behind
                self.places += [(name, place, length) for place in range(first, last)]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Any:
        name, place, length = self.places[index]
        steps = [min(max(step, 0), length - 1) for step in range(place - self.before, place + self.behind + 1)]
        with h5py.File(self.path) as file:
            demo = file[f"data/{name}"]
            made = {key: np.stack([demo[key][step] for step in steps]) for key in self.dataset_keys}
            parts = ("obs", "next_obs") if self.more.get("load_next_obs", True) else ("obs",)
            for part in parts:
                made[part] = {key: np.stack([demo[part][key][step] for step in steps]) for key in self.obs_keys}
            if self.more.get("goal_mode") == "last":
                made["goal_obs"] = {key: demo["next_obs"][key][length - 1] for key in self.obs_keys}
        return made


def their_sequences() -> Theirs:
    if find_spec("robomimic") is None:
        pytest.skip("robomimic is not installed")
    found = imported("robomimic", "robomimic.utils.dataset", ROBOMIMIC_NEEDS)
    return lambda path, obs, keys, **more: found.SequenceDataset(path, obs, keys, **{"hdf5_use_swmr": False, **more})


# --- what the tests need ----

STABLE_WORLDMODEL_NEEDS = ("PIL", "loguru", "lance", "lancedb", "pyarrow", "gymnasium")
ROBOMIMIC_NEEDS = ("tensorboardX", "termcolor")


def imported(package: str, module: str, needs: tuple[str, ...]) -> Any:
    """A module of a package, without what the package's own __init__ imports: simulators, among others."""
    if package not in sys.modules:
        spec = find_spec(package)
        assert spec is not None
        sys.modules[package] = module_from_spec(spec)
    with warnings.catch_warnings(), pretended(*needs):
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def same(one: Any, other: Any) -> bool:
    """Whether two samples or batches have the same structure, types and bits, as tensors."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    first, second = torch.as_tensor(one), torch.as_tensor(other)
    return first.dtype == second.dtype and torch.equal(first, second)


def alike(ours: Any, theirs: Any, **options: Any) -> None:
    """All samples, and two shuffled epochs of batches, are the same."""
    assert len(ours) == len(theirs) > 0
    assert all(same(ours[index], theirs[index]) for index in range(len(theirs)))
    drawn = [torch.Generator().manual_seed(4) for _ in range(2)]
    wanted = torch.utils.data.DataLoader(theirs, 5, shuffle=True, generator=drawn[0])
    with DataLoader(ours, 5, shuffle=True, generator=drawn[1], **options) as loader:
        for _epoch in range(2):
            pairs = zip(loader, wanted, strict=True)
            assert all(same(one, two) for one, two in pairs)


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_episodes(tmp_path_factory.mktemp("episodes") / "pusht.h5")


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demonstrations(tmp_path_factory.mktemp("demonstrations") / "demos.hdf5")


@pytest.fixture(params=["written out", "theirs"])
def clips(request: pytest.FixtureRequest) -> Theirs:
    return WrittenOutClips if request.param == "written out" else their_clips()


@pytest.fixture(params=["written out", "theirs"])
def sequences(request: pytest.FixtureRequest) -> Theirs:
    return WrittenOutSequences if request.param == "written out" else their_sequences()


# --- clips ----


@pytest.mark.parametrize(("num_steps", "frameskip"), [(1, 1), (4, 1), (3, 2), (4, 5), (1, 7)])
def test_clips_are_those_of_stable_worldmodel(clips: Theirs, episodes: Path, num_steps: int, frameskip: int) -> None:
    asked = {"num_steps": num_steps, "frameskip": frameskip}
    alike(worldmodel.clips(episodes, **asked), clips(episodes, **asked))


@pytest.mark.parametrize("keys", [["pixels"], ["proprio", "action"], ["reward", "pixels", "depth"]])
def test_columns_may_be_chosen_and_clips_stay_the_same(clips: Theirs, episodes: Path, keys: list[str]) -> None:
    asked = {"num_steps": 3, "frameskip": 3, "keys_to_load": keys}
    ours = worldmodel.clips(episodes, **asked)
    alike(ours, clips(episodes, **asked), buffer="1MiB")
    assert [*ours[0]] == keys


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    assert all(isinstance(values, torch.Tensor) for values in sample.values())
    assert sample["action"].shape == (6, 2) and sample["pixels"].shape == (3, 3, 8, 6)
    return sample | {"action": sample["action"] * 2, "sum": sample["pixels"].sum()}


def test_a_transform_gets_what_it_gets_there(clips: Theirs, episodes: Path) -> None:
    asked = {"num_steps": 3, "frameskip": 2, "transform": doubled}
    alike(worldmodel.clips(episodes, **asked), clips(episodes, **asked))
    alike(pickle.loads(pickle.dumps(worldmodel.clips(episodes, **asked))), clips(episodes, **asked), num_workers=2)


def test_without_a_transform_nothing_runs_in_python(episodes: Path) -> None:
    assert worldmodel.clips(episodes, 4, 5).transform is None


def test_clips_of_several_files_and_by_url(episodes: Path, tmp_path: Path) -> None:
    other = write_episodes(tmp_path / "b.h5", pixels=np.zeros((sum(EPISODES), 8, 6, 3), "u1"))
    ours = worldmodel.clips([episodes, other], 3)
    parts = [WrittenOutClips(path, 3) for path in (episodes, other)]
    alike(ours, torch.utils.data.ConcatDataset(parts))
    with served(episodes.parent) as web:
        alike(worldmodel.clips(web.url(episodes), 3), parts[0])


def test_clips_that_cannot_be_are_refused_in_words(episodes: Path, tmp_path: Path) -> None:
    for options, said in (
        ({"keys_to_cache": ["action"]}, "buffer="),
        ({"keys_to_merge": {"state": ["proprio"]}}, "torch.cat"),
        ({"name": "pusht"}, "the first argument"),
        ({"num_steps": 40}, r"num_steps=40 times frameskip=1 steps, and the longest episode has 31: give fewer"),
        (
            {"num_steps": 7, "frameskip": 5, "keys_to_load": ["pixels"]},
            "num_steps=7 times frameskip=5 .* longest .* 31",
        ),
        ({"num_steps": 0}, "num_steps=0: at least 1"),
        ({"keys_to_load": ["pixel"]}, "did you mean /pixels"),
        ({"keys_to_load": []}, r"keys_to_load=\[\] names no column: leave it out for all"),
        ({"keys_to_load": ["ep_len", "reward"]}, r"79 steps .* ep_len has 6 rows: give keys_to_load=\['reward'\]"),
    ):
        with pytest.raises(ValueError, match=said):
            worldmodel.clips(episodes, **options)  # type: ignore[arg-type]
    for wrong, said in (
        ({"steps": 3}, "clips takes no steps=; did you mean num_steps="),
        ({"samples": "rows"}, "clips takes no samples=$"),
        ({"num_steps": 2.5}, "num_steps=2.5: it is a whole number"),
        ({"keys_to_load": "pixels"}, r"a list of names, as \['pixels'\]"),
        ({"keys_to_load": [3]}, r"keys_to_load=\[3\]: it is a list of names"),
        ({"transform": "x"}, "transform='x': it is a function of a clip"),
    ):
        with pytest.raises(TypeError, match=said):
            worldmodel.clips(episodes, **wrong)  # type: ignore[arg-type]
    assert len(worldmodel.clips(episodes, 3, cache_dir=None, keys_to_cache=[])) > 0
    text = write_episodes(tmp_path / "text.h5", task=np.array([b"push"] * sum(EPISODES)))
    with pytest.raises(
        LayoutError, match=r"columns of numbers .* task is of \|S4: give keys_to_load=\['action', 'depth'"
    ):
        worldmodel.clips(text, 3)
    pictures = write_episodes(tmp_path / "pictures.h5", action=np.zeros((sum(EPISODES), 2, 2, 3)))
    with pytest.raises(LayoutError, match="actions are rows of numbers"):
        worldmodel.clips(pictures, 3)
    wrongs: list[tuple[str, Any]] = [("ep_offset", [0, 9, 9, 32, 36, 47]), ("ep_offset", [0, 9])]
    wrongs += [("ep_len", [9, 0, 23, 4, 12]), ("ep_len", [9.0, 0, 23, 4, 12, 31]), ("ep_len", [99, -90, 23, 4, 12, 31])]
    for name, values in wrongs:
        wrong = write_episodes(tmp_path / "wrong.h5")
        with h5py.File(wrong, "a") as file:
            del file[name]
            file[name] = values
        with pytest.raises(LayoutError, match="ep_offset does not say that episodes"):
            worldmodel.clips(wrong, 3)
    wrong = write_episodes(tmp_path / "wrong.h5", reward=np.zeros(7), fps=np.zeros(1))
    with pytest.raises(
        LayoutError, match=r"fps has 1 row: give keys_to_load=\['action', 'depth', 'maps', 'pixels', 'pro"
    ):
        worldmodel.clips(wrong, 3)


def test_a_file_of_another_kind_is_led_to_what_reads_it(episodes: Path, demonstrations: Path, tmp_path: Path) -> None:
    with pytest.raises(
        LayoutError, match=r"ep_len and ep_offset, and this one does not: worldmodel.robomimic\(\.\.\.\) reads"
    ):
        worldmodel.clips(demonstrations)
    with pytest.raises(
        LayoutError, match=r"/data/demo_0 and so on, and this one has none: worldmodel.clips\(\.\.\.\) reads"
    ):
        worldmodel.robomimic(episodes, OBS)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.zeros(5)
    for ask in (worldmodel.clips, lambda path: worldmodel.robomimic(path, OBS)):
        with pytest.raises(LayoutError, match="`solar inspect` says how others are read"):
            ask(tmp_path / "other.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["ep_len"], file["ep_offset"] = [5], [0]
    with pytest.raises(LayoutError, match="there is no column beside ep_len and ep_offset"):
        worldmodel.clips(tmp_path / "other.h5")


# --- sequences ----

ASKED: dict[str, dict[str, Any]] = {
    "a step": {},
    "padded": {"frame_stack": 3, "seq_length": 4},
    "padded at the end": {"frame_stack": 3, "seq_length": 2, "pad_frame_stack": False, "filter_by_attribute": "train"},
    "padded at the beginning": {"frame_stack": 2, "seq_length": 4, "pad_seq_length": False, "mask": "train"},
    "within": {"frame_stack": 2, "seq_length": 3, "pad_seq_length": False, "pad_frame_stack": False, "mask": "train"},
    "goals": {"frame_stack": 2, "seq_length": 3, "goal_mode": "last"},
    "goals of some": {"seq_length": 8, "goal_mode": "last", "mask": "train"},
    "only what is observed": {"seq_length": 2, "load_next_obs": False},
}


@pytest.mark.parametrize("buffer", [0, "1MiB"])
@pytest.mark.parametrize("case", ASKED)
def test_sequences_are_those_of_robomimic(sequences: Theirs, demonstrations: Path, case: str, buffer: Any) -> None:
    asked = dict(ASKED[case])
    if mask := asked.pop("mask", None):
        asked["filter_by_attribute"] = mask
    ours = worldmodel.robomimic(demonstrations, OBS, dataset_keys=DATASETS, **asked)
    alike(ours, sequences(str(demonstrations), OBS, DATASETS, **asked), buffer=buffer)


def test_demonstrations_come_by_number_not_by_name(demonstrations: Path) -> None:
    data = worldmodel.robomimic(demonstrations, OBS)
    groups = data.locate(np.arange(len(data))).group
    assert [*dict.fromkeys(groups)] == [f"/data/demo_{number}" for number in (0, 1, 2, 3, 10, 11)]


def test_sequences_that_cannot_be_are_refused_in_words(demonstrations: Path, tmp_path: Path) -> None:
    for options, said in (
        ({"hdf5_cache_mode": "low_dim"}, "buffer="),
        ({"hdf5_use_swmr": True}, "being written"),
        ({"hdf5_normalize_obs": True}, "normalise"),
        ({"get_pad_mask": True}, "pad_seq_length=False"),
        ({"action_keys": ["actions"]}, "name actions in dataset_keys"),
        (
            {"dataset_keys": ["rewards", "donets"]},
            "dataset_keys has 'donets', and /data/demo_0 has not: did you mean dones",
        ),
        ({"filter_by_attribute": "test"}, "no /mask/test; its masks are train"),
        ({"goal_mode": "first"}, "goal_mode='first'"),
        ({"goal_mode": "last", "load_next_obs": False}, "goes with load_next_obs"),
        ({"goal_mode": "last", "seq_length": 2, "pad_seq_length": False}, "and pad_seq_length"),
        ({"seq_length": 3, "pad_seq_length": False}, "demo_11 has 1 rows, too few"),
        ({"frame_stack": 0}, "at least 1"),
        ({"filter_by_attribute": "valid"}, "mask/valid"),
        ({"dataset_keys": ["action"]}, "action"),
    ):
        with pytest.raises(ValueError, match=said):
            worldmodel.robomimic(demonstrations, OBS, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="robomimic takes no seq_len=; did you mean seq_length="):
        worldmodel.robomimic(demonstrations, OBS, seq_len=3)
    with pytest.raises(ValueError, match="obs_keys and dataset_keys name nothing"):
        worldmodel.robomimic(demonstrations, [], dataset_keys=[])
    with pytest.raises(LayoutError, match="obs_keys has 'camra', and /data/demo_0/obs has not: did you mean camera"):
        worldmodel.robomimic(demonstrations, ["camra"])
    assert len(worldmodel.robomimic(demonstrations, OBS, hdf5_cache_mode=None, hdf5_use_swmr=False)) == 40
    with pytest.raises(LayoutError, match="2 files"):
        worldmodel.robomimic([demonstrations, demonstrations], OBS)
    wrong = write_demonstrations(tmp_path / "wrong.hdf5")
    with h5py.File(wrong, "a") as file:
        file["data/demo_1"].attrs["num_samples"] = 8
        file["data"].attrs["total"] = 39
        file["mask/some"] = np.array([b"demo_0", b"demo_7"])
        file["mask/none"] = np.array([], "S6")
    with pytest.raises(LayoutError, match="demo_1 has 9 rows, and its num_samples is 8"):
        worldmodel.robomimic(wrong, OBS)
    with h5py.File(wrong, "a") as file:
        file["data/demo_1"].attrs["num_samples"] = 9
        del file["data"].attrs["total"]  # which need not be there
    assert len(worldmodel.robomimic(wrong, OBS)) == 40
    with pytest.raises(LayoutError, match="mask/some names demo_7"):
        worldmodel.robomimic(wrong, OBS, filter_by_attribute="some")
    with pytest.raises(LayoutError, match="mask/none names no demonstration"):
        worldmodel.robomimic(wrong, OBS, filter_by_attribute="none")
    with h5py.File(wrong, "a") as file:
        for demo in file["data"].values():
            del demo["next_obs"]
    with pytest.raises(LayoutError, match="demonstrations have no next_obs: give load_next_obs=False"):
        worldmodel.robomimic(wrong, OBS)
    assert len(worldmodel.robomimic(wrong, OBS, load_next_obs=False)) == 40
    with h5py.File(wrong, "a") as file:
        del file["mask"]
    with pytest.raises(LayoutError, match="it has no masks, so leave the argument out"):
        worldmodel.robomimic(wrong, OBS, load_next_obs=False, filter_by_attribute="train")
    named = write_demonstrations(tmp_path / "named.hdf5", {"demo_0": 3, "first": 4})
    with pytest.raises(LayoutError, match="/data/first: demonstrations are named demo_0"):
        worldmodel.robomimic(named, OBS)


# --- as every H5Dataset ----

KINDS: dict[str, Callable[[Path], H5Dataset]] = {
    "clips": lambda folder: worldmodel.clips(folder / "pusht.h5", 3, 2, keys_to_load=["pixels", "action"]),
    "some clips": lambda folder: worldmodel.clips(folder / "pusht.h5", 3, 2, keys_to_load=["pixels"]),
    "sequences": lambda folder: worldmodel.robomimic(
        folder / "demos.hdf5", OBS, frame_stack=2, seq_length=3, pad_seq_length=False, filter_by_attribute="train"
    ),
    "goals": lambda folder: worldmodel.robomimic(folder / "demos.hdf5", OBS, seq_length=3, goal_mode="last"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("both")
    write_episodes(folder / "pusht.h5")
    write_demonstrations(folder / "demos.hdf5")
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("buffer", [0, "1MiB"])
def test_an_epoch_goes_on_from_its_state_and_ranks_divide_it(kind: str, buffer: Any, folder: Path) -> None:
    data = KINDS[kind](folder)
    whole = batches(data, PlanSampler(data, 1, 0, seed=3), buffer=buffer)
    with DataLoader(data, 4, sampler=PlanSampler(data, 1, 0, seed=3), buffer=buffer) as loader:
        iterator = iter(loader)
        seen = [next(iterator) for _ in range(2)]
        state = loader.state_dict()
        del iterator
    with DataLoader(data, 4, sampler=PlanSampler(data, 1, 0, seed=3), buffer=buffer) as loader:
        loader.load_state_dict(state)
        assert same(dict(enumerate([*seen, *loader])), dict(enumerate(whole)))
    parts = [batches(data, PlanSampler(data, 2, rank, seed=3, tail="exact"), exchange="off") for rank in range(2)]
    assert sorted(each_of(parts[0]) + each_of(parts[1])) == sorted(each_of(whole))


def batches(data: Any, sampler: Any, **options: Any) -> list[Any]:
    with DataLoader(data, 4, sampler=sampler, **options) as loader:
        return [*loader]


def each_of(found: list[Any]) -> list[bytes]:
    """The bytes of each sample of some batches."""
    every = [list(zip(*map(list, parts(one)), strict=True)) for one in found]
    return [b"".join(part.numpy().tobytes() for part in sample) for one in every for sample in one]


def parts(batch: Any) -> list[torch.Tensor]:
    return [tensor for part in batch.values() for tensor in (parts(part) if isinstance(part, dict) else [part])]


@pytest.mark.parametrize("kind", KINDS)
def test_a_service_gives_the_same_batches(kind: str, folder: Path, tmp_path: Path) -> None:
    data = [KINDS[kind](folder) for _ in range(2)]
    with serving(*sorted(folder.glob("*.h*5")), where=tmp_path, slack=PATIENT) as service:
        check(data, together(data, str(service.path)))
