"""One of several unlike trainings that share a service: python serve_mixed_program.py PATH SOCKET GROUP LIMIT JOB."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import limits_groups

from solar import DataLoader, H5Dataset, PlanSampler


class Mixed(NamedTuple):
    """What one trains on: from this batch of this epoch on, until so many batches are done."""

    seed: int
    batch: int
    epoch: int
    begin: int
    batches: int


def trained(path: str, one: Mixed, service: str | None, each: float = 0, told: Any = lambda number: None) -> str:
    """A number for all its batches. It goes on from where it was once, as a training does."""
    data, sha = H5Dataset(path, "x"), hashlib.blake2b()

    def loader(of: str | None) -> DataLoader[Any]:
        return DataLoader(data, one.batch, sampler=PlanSampler(data, seed=one.seed), service=of, buffer=0)

    with loader(None) as before:
        before.set_epoch(one.epoch)
        for _ in zip(range(one.begin), before, strict=False):
            pass
        state = before.state_dict()
    done = 0
    with loader(service) as here:
        here.load_state_dict(state)
        epoch = one.epoch
        while done < one.batches:
            here.set_epoch(epoch)
            for batch in here:
                sha.update(batch.numpy().tobytes())
                done += 1
                told(done)
                time.sleep(each)  # what a training does with a batch: jobs are to meet each other
                if done == one.batches:
                    break
            epoch += 1
    return sha.hexdigest()


def main() -> None:
    path, service, group, limit, job = sys.argv[1:]
    one = Mixed(*json.loads(job))
    trained(path, one._replace(batches=2), None)  # all that any loader needs is there from now on
    if group:
        limits_groups.enter(Path(group), int(limit))
    print("ready", flush=True)
    sys.stdin.readline()

    def told(number: int) -> None:
        if number == 20:
            print("amid", flush=True)

    print(trained(path, one, service, 0.001, told), flush=True)


if __name__ == "__main__":
    main()
