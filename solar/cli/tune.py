"""Finds how far inputs may be off: the bound at which a model's gradients change by a small share of their noise."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solar.cli import argument_types, words
from solar.cli.cost import is_compressed
from solar.cli.progress_bar import Become, counted, doing, nearby, progress_by
from solar.errors import PlanError
from solar.io.codec.codec import Codec, rounded_down
from solar.io.hdf5.layouts import inspect
from solar.io.hdf5.opening import look, open_file_checked
from solar.values import is_url

if TYPE_CHECKING:  # torch takes its time: run() imports it
    from solar.training.bound_search import Rung, Training, Tuned

DETAILS = """\
  solar tune scan.h5 --model mymodel:build --loss mse --input entry/data/counts --target entry/truth/phase
  solar tune scan.h5 --model mymodel:build --loss mymodel:loss --input entry/data/counts --target entry/truth/phase

--model names a function without arguments that makes a torch.nn.Module, in a module of this folder or an installed one.
--loss is one of mse, mae, smooth_l1, huber, cross_entropy, bce, poisson_nll, between what model(input, ...) gives and
the one target; inputs are then converted to the model's type. Or it names a function of yours, loss(model, batch), that
gives the mean loss of a batch, {NAME: tensor}, as it comes out of a DataLoader. A NAME is the last part of a data set's
path; KEY=PATH gives another one.

Random batches are compared with themselves: the same samples, weights and draws of dropout, once as they are and once
as `solar compress` would give them back. The noise is how far gradients of such batches are from their mean. A change
of a tenth of it (--fraction) adds half a percent to it, as batches smaller by one percent would. More: docs/lossy.md.

keys of --json: version (1), file, model, loss, batch, seed, steps, fraction, fields ([{name, samples, dtype, batches,
  span (of rel), unit (of packed fields: "unpacked values" or "stored numbers"; else ""), whole (numbers), sigma
  (Poisson's, of counts, or null), anew (the change if they were counted again), states ([{name, noise, error (of noise,
  a share), mean_gradient}]), rungs ([{setting, bound, ratio, decode, rms_error, changes, shared}]; these two and anew
  of each state, as shares of its noise), ignored, recommended}]), command
"""
LADDER = (1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
ALREADY = "the answer leaves out by how much these values are off already; give the original file"
HARDLY_SMALLER = 1.25  # times smaller than lossless: not worth being off


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="an HDF5 file, not compressed yet, or its URL")
    model = parser.add_argument_group("the training")
    model.add_argument("--model", metavar="MODULE:BUILD", required=True, help="what makes the model")
    model.add_argument("--loss", metavar="LOSS", required=True, help="mse, mae, ..., or MODULE:LOSS")
    model.add_argument("--input", metavar="NAME", nargs="+", required=True, help="the fields to be compressed")
    model.add_argument("--target", metavar="NAME", nargs="+", default=[], help="fields that stay as they are")
    model.add_argument("--weights", metavar="FILE", help="a state_dict to begin with, as torch.save wrote it")
    model.add_argument("--steps", metavar="K", type=_steps, default=300, help="also after K steps of Adam (300; 0: no)")
    model.add_argument(
        "--rate", metavar="R", type=parse_above_zero, default=1e-3, help="the learning rate of those (1e-3)"
    )
    model.add_argument(
        "--batch-size", metavar="B", type=argument_types.count_argument, default=32, help="samples of a batch (32)"
    )
    model.add_argument("--device", default="cpu", help="where the model runs (cpu)")
    how = parser.add_argument_group("the measurement")
    how.add_argument(
        "--batches", metavar="N", type=argument_types.count_argument, help="that are compared (16, or what there is)"
    )
    how.add_argument(
        "--fraction", metavar="F", type=parse_above_zero, default=0.1, help="of the noise that may change (0.1)"
    )
    ladder = how.add_mutually_exclusive_group()
    ladder.add_argument("--rel", metavar="E,...", type=_ladder, help="the bounds, as shares of the range (1e-5 to 0.1)")
    ladder.add_argument("--abs", metavar="E,...", type=_ladder, help="the bounds, in the unit of the unpacked values")
    how.add_argument("--stored", action="store_true", help="bounds of packed fields are of the numbers as stored")
    how.add_argument(
        "--seed", metavar="S", type=argument_types.seed, default=0, help="of weights, batches and dropout (0)"
    )
    add("--quiet", action="store_true", help="shows no progress")
    add("--json", action="store_true", help="for programs: one JSON object")


def _steps(text: str) -> int:
    return 0 if text == "0" else argument_types.count_argument(text)


def parse_above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value


def _ladder(text: str) -> list[float]:
    return sorted({parse_above_zero(part.strip()) for part in text.split(",")})


def run(arguments: argparse.Namespace) -> int:
    from solar.training import bound_search

    with nearby(arguments.file, arguments.quiet or arguments.json) as path, _this_folder_importable():
        fields = keys_and_paths([*arguments.input, *arguments.target])
        keys = [*fields]
        inputs, targets = keys[: len(arguments.input)], keys[len(arguments.input) :]
        model = bound_search.made(
            _lines_of_search("--model", arguments.model), arguments.model, arguments.weights, arguments.seed
        )
        if arguments.loss in bound_search.LOSSES:
            loss = bound_search.loss_of(arguments.loss, inputs, targets)
        elif ":" in arguments.loss:
            loss = _lines_of_search("--loss", arguments.loss)
        else:
            raise PlanError(
                f"there is no --loss {arguments.loss!r}, only {', '.join(bound_search.LOSSES)}, or MODULE:LOSS"
            )
        task = bound_search.Training(
            path, fields, model, loss, arguments.batch_size, seed=arguments.seed, device=arguments.device
        )
        again = [fields[name] for name in inputs if is_compressed(inspect(path, fields[name]))]
        if again:
            text = f"{arguments.file}: solar compressed {', '.join(again)} already: {ALREADY}"
            print(f"solar: {words.printable(text)}", file=sys.stderr)
        with doing(arguments.quiet or arguments.json) as become:
            found = list(_tune(task, inputs, arguments, become))
    command = _command(arguments, found)
    if arguments.json:
        print(json.dumps(as_json(arguments, found, command), indent=1))
    else:
        for line in as_text(arguments, found, command):
            print(line)
    return 0


def _tune(task: Training, inputs: list[str], arguments: argparse.Namespace, become: Become) -> Iterator[Tuned]:
    from solar.training import bound_search
    from solar.training.as_stored import AsStored

    kind, bounds = "abs" if arguments.abs else "rel", arguments.abs or arguments.rel or LADDER
    asked = [Codec("lossless"), *(Codec(kind, bound, stored=arguments.stored) for bound in bounds)]
    threads = len(os.sched_getaffinity(0))
    bound_search.check_task(task, arguments.batches)
    look(Path(task.path))
    with open_file_checked(Path(task.path)) as file, ThreadPoolExecutor(threads, "solar-tune") as pool:
        named = "as given" if arguments.weights else "at first"
        states = bound_search.training_states(
            task, arguments.steps, arguments.rate, named, counted(become, "training", "steps")
        )
        for name in inputs:
            how: dict[str, Any] = {"pool": pool, "threads": threads, "progress": progress_by(become)}
            source = AsStored(task.path, file, task.fields[name], asked, **how)
            progress = counted(become, f"taking gradients for {len(asked)} bounds on {name}", "batches")
            yield bound_search.measure(task, states, name, source, asked, arguments.batches, progress)


# --- what is asked ----


def keys_and_paths(names: list[str]) -> dict[str, str]:
    """Returns each field's key in a batch, and its path."""
    fields: dict[str, str] = {}
    for name in names:
        key, equals, path = name.partition("=")
        if not equals:
            key, path = name.strip("/").rpartition("/")[2], name
        if key in fields:
            raise PlanError(f"two fields are {key}: give one another name, such as {key}2={path}")
        fields[key] = path
    return fields


@contextmanager
def _this_folder_importable() -> Iterator[None]:
    """Lets modules of the current folder be imported inside the block, as with `python -m`."""
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def _lines_of_search(option: str, text: str) -> Any:
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise PlanError(
            f"{option} {text}: write MODULE:NAME, such as mymodel:build for the function build in mymodel.py"
        )
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # what the module itself imports
        raise PlanError(f"{option} {text}: there is no module {error.name}, in {Path.cwd()} or installed") from None
    except AttributeError as error:
        if getattr(error, "name", None) != name:
            raise
        known = [one for one in vars(import_module(module)) if not one.startswith("_")]
        raise PlanError(f"{option} {text}: {module} has no {name}, only {', '.join(known[:12])}") from None


# --- what is said ----


def _recommend(tuned: Tuned, fraction: float) -> Rung:
    """Returns the chosen setting; lossless for labels, and for whole numbers if a bound makes them hardly smaller."""
    found, exact = tuned.chosen(fraction), tuned.rungs[0]
    if tuned.labels:
        return exact
    return exact if tuned.whole and found.effort.ratio < HARDLY_SMALLER * exact.effort.ratio else found


def bound_text(codec: Codec) -> str:
    stored = ",stored" if codec.stored else ""
    return codec.kind if codec.kind == "lossless" else f"{codec.kind}={codec.bound:g}{stored}"


def _command(arguments: argparse.Namespace, found: list[Tuned]) -> str:
    path = Path(arguments.file.rpartition("/")[2] if is_url(arguments.file) else arguments.file)
    said = ",".join(f"{one.part.name[1:]}:{bound_text(_recommend(one, arguments.fraction).asked)}" for one in found)
    target = path.with_name(f"{path.stem}-small{path.suffix}")
    return shlex.join(["solar", "compress", arguments.file, str(target), "--field", said])


def as_json(arguments: argparse.Namespace, found: list[Tuned], command: str) -> dict[str, Any]:
    """Returns the answer of --json; its keys are listed in DETAILS."""
    asked = {name: getattr(arguments, name) for name in ("file", "model", "loss", "seed", "steps", "fraction")}
    fields = [_field_as_json(one, arguments.fraction) for one in found]
    return {"version": 1, **asked, "batch": arguments.batch_size, "fields": fields, "command": command}


def _field_as_json(tuned: Tuned, fraction: float) -> dict[str, Any]:
    return {
        "name": tuned.part.name,
        "samples": tuned.samples,
        "dtype": tuned.part.dtype.name,
        "batches": tuned.batches,
        "span": rounded_down(tuned.part.span * tuned.part.unit),
        "unit": tuned.rungs[-1].asked.unit_name(tuned.part.unit),
        "whole": tuned.whole,
        "sigma": tuned.sigma * tuned.unit if tuned.sigma else None,
        "anew": [_finite(share) for share in tuned.shares(tuned.anew)] if tuned.anew else None,
        "states": [
            {"name": name, "noise": noise.size, "error": noise.error, "mean_gradient": noise.mean}
            for name, noise in zip(tuned.states, tuned.noises, strict=True)
        ],
        "rungs": [
            {
                "setting": bound_text(rung.asked),
                "bound": rung.bound,
                "ratio": rung.effort.ratio,
                "decode": rung.effort.decode,
                "rms_error": rung.effort.off * tuned.unit,
                "changes": [_finite(share) for share in tuned.shares(rung.changes)],
                "shared": [_finite(share) for share in tuned.shared(rung)],
            }
            for rung in tuned.rungs
        ],
        "ignored": tuned.ignored,
        "recommended": bound_text(_recommend(tuned, fraction).asked),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def as_text(arguments: argparse.Namespace, found: list[Tuned], command: str) -> Iterator[str]:
    """Yields the lines for people."""
    for one in found:
        batches = f"{one.batches} batches of {arguments.batch_size}, seed {arguments.seed}"
        yield f"{words.printable(one.part.name)}  {words.times(one.part.shape)} {one.part.dtype.name}; {batches}"
        yield from bound_table(one)
        yield from tuning_remarks(one, arguments)
        yield ""
    if len(found) > 1:
        yield "Each field was changed alone: with all of them compressed, their changes add up."
    yield words.printable(command)


def bound_table(tuned: Tuned) -> Iterator[str]:
    head = ["", "bound", "ratio", "decode", "off by"]
    rows = [head + (["of sigma"] if tuned.sigma else []) + tuned.states]
    for rung in tuned.rungs:
        off, sigma = rung.effort.off, tuned.sigma
        rows.append(
            [
                bound_text(rung.asked),
                f"{rung.bound:.3g}" if rung.bound else "",
                f"{rung.effort.ratio:.1f}",
                f"{rung.effort.decode / 1e9:.1f} GB/s",
                f"{off * tuned.unit:.3g}" if off else "nothing",
                *([percent_of_noise(off / sigma)] if sigma else []),
                *map(percent_of_noise, tuned.shares(rung.changes)),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *facts in rows:
        columns = (fact.rjust(width) for fact, width in zip(facts, widths[1:], strict=True))
        yield "  ".join(["  " + first.ljust(widths[0]), *columns]).rstrip()


def percent_of_noise(share: float) -> str:
    if math.isinf(share):
        return "no end"
    return "0" if share == 0 else f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:,.0f} %"


def tuning_remarks(tuned: Tuned, arguments: argparse.Namespace) -> Iterator[str]:
    for name, noise in zip(tuned.states, tuned.noises, strict=True):
        yield (
            f"  {name}: the gradient of a batch is off the mean of all by {noise.size:.3g} "
            f"(± {percent_of_noise(noise.error)})"
            f"; that mean is {noise.mean:.3g} long"
        )
    yield "  last columns: by how much compressed inputs change it, in % of what it is off the mean"
    of = tuned.rungs[-1].asked.unit_name(tuned.part.unit)
    yield f"  off by: root mean square error of the values{f'; it and the bound are of the {of}' if of else ''}"
    if tuned.sigma:
        said = " and ".join(percent_of_noise(share) for share in tuned.shares(tuned.anew or []))
        yield f"  counts have Poisson noise: sigma is {tuned.sigma * tuned.unit:.3g} as a root mean square"
        yield f"  the same measurement once more would change it by {said}"
    yield from judge_bounds(tuned, arguments.fraction)
    yield from shared_error(tuned, arguments)


def judge_bounds(tuned: Tuned, fraction: float) -> Iterator[str]:
    passed, said = tuned.chosen(fraction), _recommend(tuned, fraction)
    if tuned.ignored:
        yield "  the model ignores this input: no bound changes its gradients, so that any is fine, and none is tested"
    if tuned.labels:
        yield f"  recommended: lossless, {said.effort.ratio:.1f}:1. A bound would make others of them: {tuned.labels}"
    elif said is not passed:
        yield (
            f"  recommended: lossless. These are whole numbers, exact at {said.effort.ratio:.1f}:1; "
            f"{bound_text(passed.asked)} would be {passed.effort.ratio:.1f}:1"
        )
    elif passed is tuned.rungs[0]:
        most = percent_of_noise(fraction)
        yield f"  recommended: lossless. Every bound changes them by more than {most}: try smaller ones"
    else:
        more = "; larger ones may do, too" if passed is tuned.rungs[-1] and not tuned.ignored else ""
        most = percent_of_noise(fraction)
        yield f"  recommended: {bound_text(passed.asked)}, the last to change them by at most {most}{more}"
        if tuned.whole:
            yield f"  these are whole numbers: lossless is {tuned.rungs[0].effort.ratio:.1f}:1 already"


def shared_error(tuned: Tuned, arguments: argparse.Namespace) -> Iterator[str]:
    """Yields whether the error that does not average out exceeds the uncertainty of this many samples."""
    shared = max(tuned.shared(_recommend(tuned, arguments.fraction)))
    left_open = math.sqrt(arguments.batch_size / tuned.samples)
    if shared > left_open:
        yield (
            f"  beware: a change of {percent_of_noise(shared)} is the same in all batches, and does not average out; "
            f"so few samples ({tuned.samples:,}) leave {percent_of_noise(left_open)} uncertain in any case"
        )
