"""What each rank does in the tests of the exchange: one function for each scene, named by the first argument."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import exchange_kit as kit
import numpy as np

from solar.distributed import ending
from solar.distributed import exchange as module
from solar.errors import PlanError, ReadError, SolarError
from solar.io.system.waiting import polling, until

STEPS = 25


def settled() -> int:
    """The threads that are left, after those that end have had time to."""
    for _ in range(500):
        if threading.active_count() == 1:
            break
        time.sleep(0.01)
    return threading.active_count()


def counted(kinds: Counter[int]) -> None:
    """Counts the messages of each kind that this rank sends."""
    letter = module.TransferThreads._letter

    def count(self: Any, batch: Any, peer: int, head: Any, *more: Any) -> None:
        kinds[head.kind] += 1
        letter(self, batch, peer, head, *more)

    module.TransferThreads._letter = count  # type: ignore[method-assign]


def random(by: str, path: str, seed: int, letters: int = 1) -> dict[str, Any]:
    """Several stretches, one after another, each batch compared with the file."""
    kinds: Counter[int] = Counter()
    counted(kinds)
    this = kit.rank_of(path, by, 1 + seed % 4, letters)
    base = sent = received = held = 0
    for number in range(3):
        plan = kit.plans(seed * 10 + number, this.ranks, STEPS, letters=letters)[this.rank]
        kit.append(this.exchange, plan)
        held = max(held, kit.inbox_nbytes(plan.parcels, 1 + seed % 4))
        for step in range(STEPS):
            kit.check(this, plan, base, step)
        base += STEPS
        went, came = kit.travelling(plan)
        sent, received = sent + went, received + came
    counts = this.exchange.counts()
    assert this.exchange.released == this.exchange.appended == base
    assert (counts["sent_rows"], counts["received_rows"]) == (sent, received)
    assert counts["sent_bytes"] * letters == sent * kit.ROW_NBYTES
    assert counts["received_bytes"] * letters == received * kit.ROW_NBYTES
    assert (counts["inbox_bytes"], counts["inbox_peak_bytes"] <= held) == (0, True)
    this.exchange.close()
    ends, rows = kinds[ending.END], kinds[ending.ROWS]
    return {
        "sent": sent,
        "received": received,
        "threads": settled(),
        "ends": ends,
        "asks": kinds[ending.ASK],
        "rows": rows,
        "tree": kinds[ending.UP] + kinds[ending.DOWN],
    }


def bad(by: str, path: str, sample: int, letters: int = 1) -> dict[str, Any]:
    """What each step with a sample that cannot be read raises, and that all others are right."""
    this = kit.rank_of(path, by, letters=letters)
    plans = kit.plans(5, this.ranks, 4 * STEPS, letters=letters)
    plan, told = plans[this.rank], 0
    kit.append(this.exchange, plan)
    for step in range(4 * STEPS):
        come = plan.parcels.come[plan.parcels.come[:, 0] // letters == step, 1]
        senders = [peer for peer in np.unique(come).tolist() if kit.broken(plans[peer], step, sample)]
        if not senders and not kit.broken(plan, step, sample):
            kit.check(this, plan, 0, step)
            continue
        try:
            this.exchange.wait(step, len(plan.own[step]), 60)
            raise AssertionError(f"nothing was raised at step {step}")
        except SolarError as error:
            if not kit.broken(plan, step, sample):
                told += 1
                head = f"rank {senders[0]} of {this.ranks} could not read what it was to send: "
                assert isinstance(error, ReadError), error
                assert str(error).startswith(head), error
                assert "/z" in str(error), error
            this.exchange.forget(step)
    assert this.exchange.released == 4 * STEPS
    this.exchange.close()
    return {"told": told, "threads": settled()}


def leave(by: str, path: str, seed: int) -> dict[str, Any]:
    """Everybody leaves after the same batch, not at the same time, and begins again."""
    files = []
    for number in range(3):
        this = kit.rank_of(path, by, 1 + (number * 7 + seed) % 5)
        plan = kit.plans(seed + number, this.ranks, STEPS)[this.rank]
        kit.append(this.exchange, plan)
        for step in range(4 * number):
            kit.check(this, plan, 0, step)
        time.sleep(0.05 * this.rank)
        this.exchange.close()
        this.exchange.close()
        try:
            this.exchange.wait(STEPS - 1, 1, 1)
            raise AssertionError("it is closed")
        except RuntimeError as error:
            assert "closed" in str(error)
        del this, plan
        files.append(sum(1 for _ in Path("/proc/self/fd").iterdir()))
    assert files[2] <= files[1], f"open files: {files}"
    return {"threads": settled()}


def alone(by: str, path: str, seed: int) -> dict[str, Any]:
    """Rank 0 closes, the others go on: until they need what it would have sent."""
    this = kit.rank_of(path, by)
    plan = kit.plans(seed, this.ranks, STEPS)[this.rank]
    kit.append(this.exchange, plan)
    done = 0
    try:
        while done < STEPS and not (this.rank == 0 and done == 5):
            kit.check(this, plan, 0, done)
            done += 1
    except ReadError as error:
        # Whoever closes sooner would be named to the other, which would be right, too.
        Path(f"{path}.{this.rank}").touch()
        until(polling(lambda: all(Path(f"{path}.{rank}").exists() for rank in range(1, this.ranks))), 60)
        this.exchange.close()
        return {"done": done, "error": str(error)}
    this.exchange.close()
    return {"done": done, "error": ""}


def killed(by: str, path: str, victim: int, after: int) -> dict[str, Any]:
    """One rank is killed amid it all."""
    this = kit.rank_of(path, by)
    plan = kit.plans(3, this.ranks, 10 * STEPS)[this.rank]
    kit.append(this.exchange, plan)
    for step in range(10 * STEPS):
        if (this.rank, step) == (victim, after):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            kit.check(this, plan, 0, step)
        except ReadError as error:
            this.exchange.close()
            return {"rank": this.rank, "error": str(error)}
    raise AssertionError("nothing was raised")


def window(by: str, path: str, most: int) -> dict[str, Any]:
    """How many batches are with the exchange at most, while they are taken in fits and starts."""
    this = kit.rank_of(path, by, most)
    plan = kit.plans(2, this.ranks, STEPS)[this.rank]
    kit.append(this.exchange, plan)
    seen = set()
    rng = np.random.default_rng(this.rank)
    for step in range(STEPS - most):
        for _ in range(int(rng.integers(0, 20))):
            seen.add(this.running.released - this.exchange.released)
            time.sleep(0.002)
        while this.running.released < step + most:  # it goes as far as it may
            time.sleep(0.002)
        kit.check(this, plan, 0, step)
    seen.add(this.running.released - this.exchange.released)
    this.exchange.close()
    return {"most": max(seen)}


def different(by: str, path: str) -> dict[str, Any]:
    """Each rank has a plan of its own."""
    this = kit.rank_of(path, by)
    plan = kit.plans(this.rank, this.ranks, STEPS)[this.rank]
    kit.append(this.exchange, plan)
    try:
        for step in range(STEPS):
            this.exchange.wait(step, len(plan.own[step]), 20)
            this.exchange.let_go(step)
    except (PlanError, ReadError) as error:
        this.exchange.close()
        return {"kind": type(error).__name__, "error": str(error)}
    raise AssertionError("nothing was raised")


def late(by: str, path: str) -> dict[str, Any]:
    """Rank 1 comes late. Whoever waits is told for whom, and may wait again; so may who is interrupted."""
    this = kit.rank_of(path, by)
    plan = kit.plans(1, this.ranks, STEPS)[this.rank]
    if this.rank == 1:
        time.sleep(3)
    kit.append(this.exchange, plan)
    text = ""
    interrupted = this.rank != 0
    if this.rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    for step in range(STEPS):
        while not interrupted:
            try:
                this.exchange.wait(step, len(plan.own[step]), 60)
                this.exchange.wait(STEPS - 1, len(plan.own[STEPS - 1]), 60)  # which rank 1 is needed for
            except KeyboardInterrupt:
                interrupted = True
        while not text and this.rank == 0:
            try:
                this.exchange.wait(step, len(plan.own[step]), 0.6)
                break
            except TimeoutError as error:
                text = str(error)
        kit.check(this, plan, 0, step)
    this.exchange.close()
    return {"text": text}


def garbage(by: str, path: str) -> dict[str, Any]:
    """Nobody closes it, and nobody has it any more."""
    this: Any = kit.rank_of(path, by)
    kit.append(this.exchange, kit.plans(1, this.ranks, STEPS)[this.rank])
    del this
    return {"threads": settled()}


def dropped(by: str, path: str) -> dict[str, Any]:
    """Rank 0 has it no more while the other goes on: it does not stand still for that."""
    this: Any = kit.rank_of(path, by)
    kit.append(this.exchange, kit.plans(1, this.ranks, STEPS)[this.rank])
    gone = Path(path).with_name("gone")
    if this.rank == 0:
        module.LAST_WORDS = 1e6
        this = None
        gone.touch()
    while not gone.exists():
        time.sleep(0.01)
    this = None
    return {"threads": settled()}


def forked(by: str, path: str) -> dict[str, Any]:
    """A forked process has no exchange; its parent's goes on."""
    this = kit.rank_of(path, by)
    plan = kit.plans(1, this.ranks, STEPS)[this.rank]
    kit.append(this.exchange, plan)
    kit.check(this, plan, 0, 0)
    child = os.fork()
    if child == 0:
        try:
            this.exchange.wait(1, 1, 1)
        except RuntimeError:
            this.exchange.close()
            os._exit(7)
        os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for step in range(1, STEPS):
        kit.check(this, plan, 0, step)
    this.exchange.close()
    return {"status": status}


def unclosed(by: str, path: str) -> dict[str, Any]:
    """The program ends amid a stretch."""
    this = kit.rank_of(path, by)
    plan = kit.plans(1, this.ranks, STEPS)[this.rank]
    kit.append(this.exchange, plan)
    kit.check(this, plan, 0, 0)
    globals()["kept"] = this
    others = [Path(f"{path}.{by}.{rank}") for rank in range(this.ranks)]
    others[this.rank].touch()
    # Who ends first takes with it what it has not sent yet.
    until(polling(lambda: all(one.exists() for one in others)), 60)
    return {"rank": this.rank}


def early(by: str, path: str) -> dict[str, Any]:
    """Rank 0 has all its batches and closes. Rank 1 takes its last ones after that."""
    this = kit.rank_of(path, by, 2)
    plan = kit.plans(1, this.ranks, STEPS)[this.rank]
    kit.append(this.exchange, plan)
    for step in range(STEPS):
        if (this.rank, step) == (1, STEPS - 1):
            time.sleep(2)
        kit.check(this, plan, 0, step)
    lines: list[str] = []
    module.log.setLevel("INFO")
    module.log.addFilter(lambda record: lines.append(record.getMessage()) is not None)
    if this.rank == 0:
        module.LAST_WORDS = 0.5
    this.exchange.close()
    if this.rank == 0:
        time.sleep(4)  # rank 1's END is taken
        assert settled() == 1
        assert not module._left, "its memory stays after its end"
    return {"said": " ".join(lines)}


def last(by: str, path: str) -> dict[str, Any]:
    """Rank 0 closes when the programs of the others have ended, which then wait in MPI."""
    this = kit.rank_of(path, by)
    plan = kit.plans(1, this.ranks, STEPS)[this.rank]
    kit.append(this.exchange, plan)
    for step in range(STEPS):
        kit.check(this, plan, 0, step)
    lines: list[str] = []
    module.log.setLevel("INFO")
    module.log.addFilter(lambda record: lines.append(record.getMessage()) is not None)
    if this.rank == 0:
        time.sleep(3)  # so that the other one has waited in vain for its last words
    else:
        module.LAST_WORDS = 0.5
    this.exchange.close()
    return {"said": " ".join(lines), "left": len(module._left)}


if __name__ == "__main__":
    scene, by, path, *facts = sys.argv[1:]
    kit.begin(by)
    kit.say(globals()[scene](by, path, *map(int, facts)))
    if by == "torch" and scene not in ("killed", "unclosed"):
        import torch.distributed as distributed

        distributed.destroy_process_group()
