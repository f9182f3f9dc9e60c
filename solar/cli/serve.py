"""Reads files once for several trainings on this machine, each with its own batches in its own order."""

from __future__ import annotations

import argparse
import grp
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from solar.cli import words
from solar.errors import PlanError, ReadError, SolarError
from solar.io.channels import service_sockets
from solar.io.hdf5.layouts import check_whole
from solar.io.hdf5.paths import files_of
from solar.io.system import memory as machine
from solar.io.system import quantities
from solar.io.system.quantities import size_of
from solar.service.nodes import Nodes, agreed, met, several
from solar.service.pace import SLACK
from solar.service.service import Service
from solar.service.status_page import Page
from solar.values import is_url

ANSWERS = {"status": "status", "stop": "stopping"}
ANSWER_WITHIN = 10.0  # seconds that a service has for an answer
DETAILS = """\
A training takes part by DataLoader(..., service="auto"), or SOLAR_SERVICE=auto in its environment. Its batches are the
same with it, without it, and if it ends: docs/serving.md.

solar serve scan.h5 --memory 64GiB     serves until it is stopped
solar serve --status                   who is there, and what was read
solar serve --stop                     ends it; trainings go on by themselves
mpiexec -n 4 -ppn 1 solar serve ...    one on each of four nodes, which read as one
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", nargs="*", help="HDF5 files, directories of them, or quoted glob patterns")
    add("--memory", metavar="SIZE", help="all that is kept, for all jobs together: 64GiB, or 50%% of the memory")
    add(
        "--socket",
        metavar="PATH",
        help="where it listens; else in your runtime folder; --status: or user:NAME:PATH",
    )
    add("--group", metavar="NAME", help="a group whose members may come, too; with --socket")
    add("--jobs", type=int, default=200, metavar="N", help="how many may be there at a time")
    add("--slack", type=float, default=SLACK, metavar="SECONDS", help="how long one may hold back others (2 seconds)")
    add("--idle", type=float, metavar="SECONDS", help="ends when nobody has been there for so long")
    add("--background", action="store_true", help="goes on by itself, and says so when it listens")
    add("--page", type=int, nargs="?", const=0, metavar="PORT", help="a page of its status, for this machine only")
    add("--status", action="store_true", help="says who is there, and what was read")
    add("--stop", action="store_true", help="ends the service")
    add("--json", action="store_true", help="the status, for programs")


def run(arguments: argparse.Namespace) -> int:
    if arguments.status or arguments.stop:
        return ask_running(arguments)
    files, memory = _wanted(arguments)
    group = None if arguments.group is None else group_number(arguments.group, arguments.socket)
    path = Path(arguments.socket) if arguments.socket else service_sockets.socket_of(files)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each job takes some
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    if not arguments.background and several() > 1:  # one in the background is a training's own
        if arguments.idle is not None:
            raise PlanError("--idle: services of several nodes end together, by `solar serve --stop` or with their job")
        service = _one_of_several(files, arguments.memory, memory, path, arguments.jobs, group, arguments.slack)
    else:
        service = Service(files, memory, path, arguments.jobs, arguments.idle, group, arguments.slack)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    served = quantities.count(len(files), "file")
    page = None if arguments.page is None else Page(service.status, arguments.page)
    log = path.with_suffix(".log")
    says = f"; it says what happens in {words.printable(str(log))}" if arguments.background else ""
    nodes = service.nodes
    beside = "" if nodes is None else f", as one of {nodes.ranks} services that read together"
    print(
        f"serving {served} with {quantities.size(service.memory)} at {words.printable(str(path))}{says}{beside}",
        flush=True,
    )
    if page is not None:
        print(f"its page is {page.url}, and what Prometheus reads {page.url}metrics", flush=True)
    if arguments.background and not goes_on_alone(log, group):
        return 0
    with page or nullcontext():
        service.run()
    if nodes is not None:
        nodes.leave()
    return 0


def _wanted(arguments: argparse.Namespace) -> tuple[list[str], int]:
    """Returns the files, and the memory for them. Raises PlanError if the arguments are impossible."""
    if not arguments.file:
        raise PlanError("which FILE is to be served?")
    if arguments.memory is None:
        raise PlanError("--memory SIZE: how much the service may take, for all jobs together")
    if not 0 < arguments.slack < float("inf"):
        raise PlanError(f"--slack {arguments.slack:g}: more than 0 seconds")
    if arguments.idle is not None and not arguments.idle > 0:
        raise PlanError(f"--idle {arguments.idle:g}: more than 0 seconds")
    if arguments.jobs < 1:
        raise PlanError(f"--jobs {arguments.jobs}: one or more")
    files = [path for one in arguments.file for path in files_of(one)]
    if arguments.background and (url := next(filter(is_url, files), None)):
        raise PlanError(
            f"{words.printable(url)}: --background leaves behind what fetches URLs: leave it out, and begin the "
            "command by systemd, by the shell's &, or as a job's first step"
        )
    check_whole([one for one in files if not is_url(one)])
    there_is = machine.memory_nbytes()
    memory = size_of(arguments.memory, there_is)
    if not 0 < memory <= there_is:
        raise PlanError(
            f"--memory {arguments.memory}: this node has {quantities.size(there_is)} of memory (the limits of a "
            "container count); give a part of that, such as 50%"
        )
    return files, memory


def _one_of_several(
    files: list[str], asked_for: str, memory: int, path: Path, jobs: int, group: int | None, slack: float
) -> Service:
    """Returns the service of this node, if a launcher has started one on each of several."""
    found, memory = met(sorted(map(service_sockets.real, files)), asked_for, memory)
    service, trouble = None, None
    try:
        service = Service(files, memory, path, jobs, None, group, slack)
    except SolarError as error:
        trouble = error
    try:
        agreed(found, trouble)
        assert service is not None, "it listens, or that is its trouble"
        service.joins(Nodes(found))
    except BaseException:
        if service is not None:
            service.close()
        raise
    return service


def group_number(name: str, path: str | None) -> int:
    """Returns a group's number. Raises PlanError if it does not exist, or if only the user could reach the socket."""
    if path is None:
        raise PlanError("--group: only you may enter your runtime folder: give --socket PATH in one that the group may")
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise PlanError(f"--group {words.printable(name)}: there is no such group") from None


def goes_on_alone(log: Path, group: int | None) -> bool:
    """Detaches from the terminal: forks, and returns whether this is the process that goes on, logging to a file.

    It forks before the engine's threads begin.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    where = service_sockets.private(log.parent, group)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
    words_of = os.open(log.name, flags, 0o600, dir_fd=where)
    os.close(where)
    if os.fork():
        return False
    os.setsid()
    for here, at in ((nothing, 0), (nothing, 1), (words_of, 2)):
        os.dup2(here, at)
    return True


def ask_running(arguments: argparse.Namespace) -> int:
    owner = None
    if arguments.socket:
        path, owner = service_sockets.named_service(arguments.socket)
        paths = [path]
    elif arguments.file:
        paths = [service_sockets.socket_of([path for one in arguments.file for path in files_of(one)])]
    else:
        paths = service_sockets.found()
    answers = []
    for path in paths:
        try:
            answers.append((path, ask_service(path, "stop" if arguments.stop else "status", owner)))
        except ReadError:
            if arguments.socket or arguments.file:
                raise
    if not answers:
        raise PlanError("no service of yours is there: start one by `solar serve FILE --memory SIZE`")
    if arguments.stop:
        for path, _ in answers:
            print(f"the service at {words.printable(str(path))} ends")
    elif arguments.json:
        print(json.dumps([{"socket": str(path), **answer["told"]} for path, answer in answers], indent=2))
    else:
        for path, answer in answers:
            print("\n".join(status_lines(path, answer["told"])))
    return 0


def ask_service(path: Path, what: str, owner: int | None) -> dict[str, Any]:
    peer, _ = service_sockets.greeted(path, ANSWER_WITHIN, "solar serve", owner)
    with peer:
        return service_sockets.ask(peer, path, {"is": what}, ANSWERS[what])[0]


def status_lines(path: Path, status: dict[str, Any]) -> Iterator[str]:
    files, memory = quantities.count(status["files"], "file"), quantities.size(status["memory"])
    yield f"{words.printable(str(path))}: {files}, {memory}"
    if "first_file" in status:  # one that an older version began does not say
        yield f"  serves {words.printable(status['first_file'])}{' and others' if status['files'] > 1 else ''}"
    if status["nodes"] > 1:
        others = "  reads together with the services of {} nodes (it is rank {}): sent {:,} samples, received {:,}"
        yield others.format(status["nodes"], status["node"], status["sent_samples"], status["received_samples"])
    yield (
        f"  read {quantities.size(status['read_bytes'])} in {status['requests']:,} requests, handed on "
        f"{quantities.size(status['handed_bytes'])}, {quantities.size(status['held_bytes'])} held"
    )
    yield f"  nobody holds back others for more than {quantities.duration(status['slack'])}"
    if not status["jobs"]:
        yield "  no training is there now"
    for job in status["jobs"]:
        state = f"left behind: {job['why']}" if job["why"] else "waits for its next batch" if job["waits"] else "works"
        state += _pace(job)
        yield f"  {words.printable(job['name'])}: batch {job['batches']:,} of {job['told']:,} that it told; {state}"
    if more := status.get("more_jobs", 0):
        yield f"  and {quantities.count(more, 'job')} more"


def _pace(job: dict[str, Any]) -> str:
    """Returns how fast a job is by itself, if known, and its planned share of the steps."""
    own = f"; a batch takes it {quantities.duration(job['seconds'])}" if job["seconds"] else ""
    return own + (f"; at {job['rate']:.2g} of the pace of the fastest" if job["rate"] < 1 else "")
