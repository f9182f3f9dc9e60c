"""Files of robots and world models: the samples of stable-worldmodel's HDF5Dataset and robomimic's SequenceDataset.

    from solar import DataLoader
    from solar.integrations import worldmodel

    loader = DataLoader(worldmodel.clips("pusht.h5", num_steps=16), batch_size=64, shuffle=True)

Both functions take the arguments of these classes and return an H5Dataset. Neither library is imported.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature as inspect_signature
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from solar.errors import LayoutError, PlanError, refuse_arguments
from solar.io.hdf5.layouts import inspect
from solar.io.hdf5.paths import Paths, files_of, hint
from solar.io.reading.reader import read
from solar.io.system.quantities import count
from solar.samples.constants import read_constant_attribute
from solar.samples.dataset import H5Dataset
from solar.samples.field import Field
from solar.samples.pending import leaves
from solar.samples.windows import Windows
from solar.values import Layout

ASKED_ALL = 500  # demonstrations of which each is asked for its num_samples: of thousands that takes seconds
EPISODES = ("ep_len", "ep_offset")
THE_LAST_ROW = 2**31 - 1  # a step longer than any demonstration: a window that is held within it has its last row
# What is not taken, and what does the same. A false value asks for nothing, and is allowed.
NOT_OF_CLIPS = {
    "name": "give the path of the file as the first argument",
    "cache_dir": "give the path of the file as the first argument",
    "keys_to_cache": "DataLoader(..., buffer=) holds what fits into memory, of all columns",
    "keys_to_merge": "torch.cat the columns of a batch, in the loop or in a device_transform",
    "storage_options": "docs/remote.md says how to give credentials for s3://, gs://, az:// and https://",
    "file": "give a path or a URL instead of an open file",
}
NOT_OF_ROBOMIMIC = {
    "hdf5_cache_mode": "DataLoader(..., buffer=) holds what fits into memory. robomimic's cache also makes float32 of "
    "dataset_keys; here they have the type of the file until the loop casts them, as robomimic's does",
    "hdf5_use_swmr": "a file that is being written is not read; without it, the samples are the same",
    "hdf5_normalize_obs": "normalise batches in the loop, as later versions of robomimic do",
    "action_keys": "name actions in dataset_keys, and join them in the loop",
    "action_config": "normalise actions in the loop",
    "get_pad_mask": "leave out padded windows by pad_frame_stack=False and pad_seq_length=False",
}


def clips(
    path: Paths,
    num_steps: int = 1,
    frameskip: int = 1,
    *,
    keys_to_load: Sequence[str] | None = None,
    transform: Callable[[dict[str, Any]], Any] | None = None,
    **others: Any,
) -> H5Dataset:
    """Returns the clips of a file of stable-worldmodel, in the order and layout of its HDF5Dataset.

    A clip begins at each step from which `num_steps` * `frameskip` steps lie in one episode. It has every
    `frameskip`-th of them, but all actions, those of one step joined: (num_steps, frameskip * actions). Images come
    with channels first. `keys_to_load` are the columns; None: all but ep_len and ep_offset.

    `transform` gets what it gets from HDF5Dataset: a dict of tensors, with an action for each step of the file. Without
    it nothing runs in Python.
    """
    refuse_arguments("clips", others, NOT_OF_CLIPS, inspect_signature(clips).parameters)
    steps, skip = _counted("num_steps", num_steps), _counted("frameskip", frameskip)
    if transform is not None and not callable(transform):
        raise TypeError(f"transform={transform!r:.60}: it is a function of a clip, a dict of tensors")
    files = files_of(path)
    lengths = [_episode_lengths(file) for file in files]
    columns = _columns(files, keys_to_load, sum(int(one.sum()) for one in lengths))
    longest = max(int(one.max(initial=0)) for one in lengths)
    if longest < steps * skip:
        raise LayoutError(
            f"{files[0]}: a clip has num_steps={steps} times frameskip={skip} steps, and the longest episode has "
            f"{longest}: give fewer num_steps, or a smaller frameskip"
        )
    fields = {
        name: _column(name, layout, steps, skip, joined=transform is None and name == "action")
        for name, layout in columns.items()
    }
    made = None if transform is None else partial(_transformed, transform, steps)
    data = H5Dataset(files, fields, samples=Windows(lengths="ep_len"), transform=made)
    if skip > 1 and "action" not in columns:  # whose windows would keep room for the steps behind the last one
        data.chosen = _with_room(data, steps * skip)
    return data


def _column(name: str, layout: Layout, steps: int, skip: int, joined: bool) -> Field:
    """Returns the clips of one column; of actions all steps, which are `joined` for each step of the clip."""
    row = layout.sample_shape
    images = len(row) == 3 and row[-1] in (1, 3)
    first = (0, 3, 1, 2) if images else None
    if name != "action":
        return Field(name, steps=range(0, steps * skip, skip), axes=first)
    if images:
        raise LayoutError(f"{layout.paths[0]}: {layout.title} has images, {row}, and actions are rows of numbers")
    shape = (steps, skip * math.prod(row)) if joined else None
    return Field(name, steps=range(steps * skip), shape=shape)


def _columns(files: list[str], keys: Sequence[str] | None, steps: int) -> dict[str, Layout]:
    """Returns the columns to load, by name. LayoutError: one of them is none, with those that are."""
    _check_names("keys_to_load", keys)
    if keys is not None and not len(keys):
        raise ValueError(f"keys_to_load={keys!r} names no column: leave it out for all of them")
    if keys is None:
        found = {name.lstrip("/"): layout for name, layout in inspect(files[0]).items()}
        names = [name for name in sorted(found) if "/" not in name and name not in EPISODES]
    else:
        names, found = list(keys), {}
    columns = {name: found[name] if len(files) == 1 and found else inspect(files, name) for name in names}
    numbers = [name for name in names if columns[name].dtype.kind in "biufc" and columns[name].samples == steps]
    for name in names:
        if name not in numbers:
            rows = columns[name].samples
            is_of = f"is of {columns[name].dtype}" if rows == steps else f"has {count(rows, 'row')}"
            raise LayoutError(
                f"{files[0]}: clips are made of columns of numbers with a row for each of the {steps:,} steps that "
                f"episodes have, and {name} {is_of}" + (f": give keys_to_load={numbers}" if numbers else "")
            )
    if not names:
        raise LayoutError(f"{files[0]}: there is no column beside ep_len and ep_offset: clips have at least one")
    return {name: columns[name] for name in names}


def _check_names(word: str, names: Any) -> None:
    if isinstance(names, str):
        raise TypeError(f"{word}={names!r}: it is a list of names, as [{names!r}]")
    if names is not None and not all(isinstance(name, str) for name in names):
        raise TypeError(f"{word}={names!r:.60}: it is a list of names")


def _episode_lengths(file: str) -> NDArray[np.int64]:
    """Returns how many steps each episode has. LayoutError: they do not lie one after another, as windows have them."""
    try:
        of_lengths, of_offsets = (inspect(file, name) for name in EPISODES)
    except LayoutError as error:
        of_robomimic = any(name.startswith("/data/demo") for name in inspect(file))
        instead = "worldmodel.robomimic(...) reads it" if of_robomimic else "`solar inspect` says how others are read"
        raise LayoutError(
            f"{file}: stable-worldmodel's files tell where episodes lie, by ep_len and ep_offset, and this one does "
            f"not: {instead} ({str(error).removeprefix(f'{file}: ')})"
        ) from None
    if of_lengths.shape == of_offsets.shape and len(of_lengths.shape) == 1 and of_lengths.dtype.kind in "iu":
        lengths: NDArray[np.int64] = read(file, EPISODES[0]).astype(np.int64)
        offsets = read(file, EPISODES[1]).astype(np.int64)
        if np.array_equal(offsets, np.cumsum(lengths) - lengths) and lengths.min(initial=0) >= 0:
            return lengths
    raise LayoutError(
        f"{file}: {of_offsets.title} does not say that episodes of ep_len steps lie one after another; "
        "stable-worldmodel's HDF5Writer writes them so"
    )


def _with_room(data: H5Dataset, span: int) -> NDArray[np.int64]:
    """Returns the samples from whose place on `span` rows lie in one episode."""
    places = leaves(data.extents)[0].of(np.arange(data.numbers))
    found: NDArray[np.int64] = np.flatnonzero(places.start + span <= places.high)
    return found


def _transformed(transform: Callable[[dict[str, Any]], Any], steps: int, sample: dict[str, Any]) -> Any:
    """Calls a transform as HDF5Dataset does, which joins the actions afterwards."""
    import torch  # without a transform nobody here needs it

    made = transform({name: torch.as_tensor(values) for name, values in sample.items()})
    if "action" in made:
        made["action"] = made["action"].reshape(steps, -1)
    return made


def robomimic(
    hdf5_path: Paths,
    obs_keys: Sequence[str],
    *,
    dataset_keys: Sequence[str] = ("actions", "rewards", "dones"),
    frame_stack: int = 1,
    seq_length: int = 1,
    pad_frame_stack: bool = True,
    pad_seq_length: bool = True,
    goal_mode: str | None = None,
    filter_by_attribute: str | None = None,
    load_next_obs: bool = True,
    **others: Any,
) -> H5Dataset:
    """Returns the sequences of a file of robomimic, in the order and layout of its SequenceDataset.

    A sample is a dict of `dataset_keys`, and of the dicts "obs", "next_obs" (with `load_next_obs`) and "goal_obs"
    (with goal_mode="last") of `obs_keys`. Each has `seq_length` steps from a place on, and `frame_stack` - 1 before
    it. Without `pad_frame_stack`, or `pad_seq_length`, sequences that leave their demonstration there are left out.
    `filter_by_attribute` names a list of demonstrations in the file's group "mask".
    """
    refuse_arguments("robomimic", others, NOT_OF_ROBOMIMIC, inspect_signature(robomimic).parameters)
    _check_names("obs_keys", obs_keys)
    _check_names("dataset_keys", dataset_keys)
    before, behind = _counted("frame_stack", frame_stack) - 1, _counted("seq_length", seq_length) - 1
    if goal_mode not in (None, "last"):
        raise ValueError(f'goal_mode={goal_mode!r}: either "last" or None')
    if goal_mode and not (load_next_obs and pad_seq_length):
        raise PlanError(
            'goal_mode="last" is the last of next_obs in a demonstration: it goes with load_next_obs and pad_seq_length'
        )
    if len(files := files_of(hdf5_path)) > 1:
        raise LayoutError(f"{len(files)} files: robomimic's are read one by one; join them with ConcatDataset")

    if not dataset_keys and not obs_keys:
        raise ValueError("obs_keys and dataset_keys name nothing: a sequence has at least one")

    def window(name: str) -> Field:
        return Field(f"/data/*/{name}", steps=range(-before, behind + 1))

    def goal(name: str) -> Field:
        name = f"/data/*/next_obs/{name}"
        return Field(name, steps=(THE_LAST_ROW,), shape=inspect(files, name).sample_shape)

    fields: dict[str, Any] = {name: window(name) for name in dataset_keys}
    fields["obs"] = {name: window(f"obs/{name}") for name in obs_keys}
    if load_next_obs:
        fields["next_obs"] = {name: window(f"next_obs/{name}") for name in obs_keys}
    try:
        if goal_mode:
            fields["goal_obs"] = {name: goal(name) for name in obs_keys}
        data = H5Dataset(files, fields, samples=Windows(pad="edge"))
    except LayoutError:
        _check_demonstrations(files[0], dataset_keys, obs_keys, load_next_obs)
        raise
    cut = 0 if pad_frame_stack else before, 0 if pad_seq_length else behind
    data.chosen = _places(files[0], leaves(data.layouts)[0], filter_by_attribute, cut)  # in robomimic's order
    return data


def _check_demonstrations(file: str, dataset_keys: Sequence[str], obs_keys: Sequence[str], load_next_obs: bool) -> None:
    """Raises LayoutError if the first demonstration has not all that is asked for, with what it has."""
    names = inspect(file)
    first = next((name.split("/")[2] for name in names if name.startswith("/data/") and name.count("/") > 2), None)
    if first is None:
        of_clips = {f"/{name}" for name in EPISODES} <= {*names}
        instead = "worldmodel.clips(...) reads it" if of_clips else "`solar inspect` says how others are read"
        raise LayoutError(
            f"{file}: robomimic's files have a group for each demonstration, /data/demo_0 and so on, and this one has "
            f"none: {instead}"
        )
    asked = [("dataset_keys", "", dataset_keys), ("obs_keys", "obs/", obs_keys)]
    if load_next_obs:
        asked.append(("obs_keys", "next_obs/", obs_keys))
    for word, part, keys in asked:
        above = f"/data/{first}/{part}"
        found = {name.removeprefix(above): layout.shape for name, layout in names.items() if name.startswith(above)}
        found = {name: shape for name, shape in found.items() if part or "/" not in name}
        for key in keys:
            if key in found:
                continue
            if part == "next_obs/" and not found:
                raise LayoutError(f"{file}: demonstrations have no next_obs: give load_next_obs=False")
            raise LayoutError(f"{file}: {word} has {key!r}, and {above[:-1]} has not: {hint(key, found, file)}")


def _places(file: str, layout: Layout, mask: str | None, cut: tuple[int, int]) -> NDArray[np.int64]:
    """Returns the rows at which sequences have their place: demonstrations by number, each without `cut` at its ends.

    Without a mask all are taken. Names sort otherwise than numbers: demo_10 comes before demo_2.
    """
    groups = layout.groups
    assert groups is not None, "its name has a star"
    begins, ends = layout.part_first[:-1].tolist(), layout.part_first[1:].tolist()
    every = {groups[number].rpartition("/")[2]: number for number in range(len(groups))}
    names = list(every) if mask is None else _names_in_mask(file, mask, every)
    doubtful = len(names) <= ASKED_ALL or not _totals_agree(file, layout.samples)
    found = []
    for name in sorted(names, key=partial(_number_of, file)):
        begin, end = begins[every[name]], ends[every[name]]
        if doubtful and (told := _number_in(file, f"/data/{name}/", "num_samples")) != end - begin:
            raise LayoutError(
                f"{file}: /data/{name} has {end - begin} rows, and its num_samples is {told}: correct the attribute, "
                "or leave the demonstration out by filter_by_attribute="
            )
        if end - begin <= sum(cut):
            raise LayoutError(
                f"{file}: /data/{name} has {end - begin} rows, too few for these frame_stack and seq_length without "
                "padding: pad_frame_stack=True and pad_seq_length=True, or leave it out by filter_by_attribute="
            )
        found.append(np.arange(begin + cut[0], end - cut[1]))
    if not found:
        raise LayoutError(f"{file}: mask/{mask} names no demonstration")
    return np.concatenate(found)


def _totals_agree(file: str, rows: int) -> bool:
    """Returns whether the file says that all its num_samples are as many rows as there are."""
    try:
        return bool(_number_in(file, "/data/", "total") == rows)
    except LayoutError:
        return False


def _number_in(file: str, group: str, attribute: str) -> Any:
    return read_constant_attribute(file, Field(group, attribute=attribute)).tolist()


def _names_in_mask(file: str, mask: str, every: dict[str, int]) -> list[str]:
    try:
        listed = read(file, f"mask/{mask}").tolist()
    except LayoutError as error:
        masks = {name.removeprefix("/mask/"): one.shape for name, one in inspect(file).items() if name[:6] == "/mask/"}
        if mask in masks:
            raise
        says = f"its masks are {', '.join(masks)}" if masks else "it has no masks, so leave the argument out"
        raise LayoutError(f"{file}: filter_by_attribute={mask!r}: there is no /mask/{mask}; {says}") from error
    names = [name.decode() if isinstance(name, bytes) else str(name) for name in listed]
    for name in names:
        if name not in every:
            raise LayoutError(f"{file}: mask/{mask} names {name}, which /data does not have")
    return names


def _number_of(file: str, name: str) -> int:
    """Returns the number of a demonstration, which follows a word of four letters and a line."""
    try:
        return int(name[5:])
    except ValueError:
        raise LayoutError(f"{file}: /data/{name}: demonstrations are named demo_0, demo_1, ...") from None


def _counted(word: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{word}={value!r}: it is a whole number")
    if operator.index(value) < 1:
        raise ValueError(f"{word}={value!r}: at least 1")
    return operator.index(value)
