"""TensorSocket: one producer that sends its batches to several consumers, in one order, at fixed ports.

    unshare --net python -m bench.serve_tensorsocket FILE JOBS BATCH EPOCHS MEMORY SECONDS TOGETHER KEPT

It listens at all interfaces without asking who comes, so it is tried in a network namespace of its own. Its producer is
given what reads fastest here: solar's loader, with all of the memory. Consumers count what comes, until the epochs are
over or so many seconds. TOGETHER batches come in one message (its producer_batch_size; with 1 it hangs), and KEPT of
them may be on their way to a consumer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

import torch


def main() -> int:
    """Begins the producer and its consumers, and says what these had."""
    if sys.argv[1] in PARTS:
        PARTS[sys.argv[1]](*sys.argv[2:])
        return 0
    jobs = int(sys.argv[2])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    command = [sys.executable, "-m", "bench.serve_tensorsocket"]
    producer = subprocess.Popen(
        [*command, "produce", *sys.argv[1:6], *sys.argv[7:9]], stdout=subprocess.PIPE, text=True
    )
    _until(producer, "ready")
    consumers = [
        subprocess.Popen([*command, "consume", *sys.argv[3:5], sys.argv[6]], stdout=subprocess.PIPE, text=True)
        for _ in range(jobs)
    ]
    begin = float(_until(producer, "begins"))
    said = [json.loads(one.communicate()[0].splitlines()[-1]) for one in consumers]
    producer.kill()
    producer.communicate()
    samples = sum(one["samples"] for one in said)
    seconds = max(one["end"] for one in said) - begin
    if not samples:
        raise RuntimeError("nothing came")
    first = [one["first"] - begin for one in said]
    print(json.dumps({"samples": samples, "seconds": seconds, "rate": samples / seconds, "first": sorted(first)}))
    return 0


def _until(producer: Any, word: str) -> str:
    """What comes behind this word; the package writes lines of its own."""
    return next(line.removeprefix(word) for line in producer.stdout if line.startswith(word))


def produce(path: str, jobs: str, batch: str, epochs: str, memory: str, together: str, kept: str) -> None:
    """Sends the epochs when all consumers are there."""
    import tensorsocket

    from solar import DataLoader, H5Dataset, PlanSampler

    data = H5Dataset(path, ("x",))
    order = PlanSampler(data, seed=0)
    with DataLoader(data, int(batch), sampler=order, epochs=int(epochs), buffer=int(memory)) as loader:
        terms = {"producer_batch_size": int(together), "consumer_max_buffer_size": int(kept)}
        made = tensorsocket.TensorProducer(_Begun(loader), **terms)
        print("ready", flush=True)
        while len(made.hb.consumers) < int(jobs):
            time.sleep(0.05)
        print("begins", time.time(), flush=True)
        for epoch in range(int(epochs)):
            loader.set_epoch(epoch)
            for _ in made:
                pass
        time.sleep(3600)  # until it is killed: consumers may still read what was sent


class _Begun:
    """A loader whose first pass begins with its first batch: a producer begins one when it is made."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Any:
        for (values,) in self.loader:
            yield (values.view(torch.int16),)  # it cannot send uint16


def consume(batch: str, epochs: str, seconds: str) -> None:
    """Counts samples, and says how many and when."""
    import tensorsocket

    end = time.monotonic() + float(seconds)
    found: dict[str, float] = {"samples": 0, "first": 0.0, "end": time.time()}

    def count() -> None:
        consumer = tensorsocket.TensorConsumer(batch_size=int(batch))
        for _ in range(int(epochs)):
            for (values,) in consumer:
                values.sum()  # it looks at them: what it has may be overwritten
                found["samples"] += len(values)
                found["end"] = time.time()
                found["first"] = found["first"] or found["end"]

    counting = threading.Thread(target=count, daemon=True)
    counting.start()
    counting.join(max(0.0, end - time.monotonic()))
    print("\n" + json.dumps(found), flush=True)
    os._exit(0)  # its threads never end


PARTS = {"produce": produce, "consume": consume}

if __name__ == "__main__":
    raise SystemExit(main())
