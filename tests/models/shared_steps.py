"""A service's steps as a model: jobs join, ask, take, leave; steps are planned, announced, given back; time passes.

Nothing of solar is used. A job that holds back others for longer than the slack is left behind, by the rules of
`solar/service/pace.py`, in quarters of a tick: of time in which it holds back nobody a quarter empties what it has
used up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

SLACK = 2  # ticks
ROOM = 2  # steps that memory has room for
KNOWN = 4  # batches of each job, of which it makes the first by itself
Event = tuple[str, int]  # what happens, and to which job


class Job(NamedTuple):
    """A job as the service sees it. Batches are counted."""

    joined: bool = False
    left: bool = False
    made: int = 0
    asks: bool = False  # for the batch after those that it has made
    planned: int = 1
    announced: int = 0
    held: int = 0  # quarters of ticks for which it has held back others lately
    stood: int = 0  # ticks for which it has, without making a batch
    seen: int = 0  # batches made at the last look

    @property
    def there(self) -> bool:
        return self.joined and not self.left

    @property
    def waits(self) -> bool:
        """Whether it waits for a batch that is not there yet."""
        return self.there and self.asks and self.made >= self.announced


GONE = Job(joined=True, left=True)


class State(NamedTuple):
    """All jobs, the steps that are planned, and those that were announced and lie in memory."""

    jobs: tuple[Job, ...]
    steps: tuple[tuple[tuple[int, int], ...], ...] = ()
    kept: tuple[tuple[tuple[int, int], ...], ...] = ()
    holders: tuple[int, ...] = ()  # who had not made the oldest kept step at the last look


def begin(jobs: int) -> State:
    return State((Job(),) * jobs)


def events(state: State) -> Iterator[Event]:
    """What may happen next. Jobs are alike: the first one joins first."""
    for at, job in enumerate(state.jobs):
        if not job.joined:
            yield "join", at
            break
    for at, job in enumerate(state.jobs):
        if not job.there:
            continue
        yield "leave", at
        if job.asks and job.made < job.announced:
            yield "take", at
        elif reads_alone(state, at):
            yield "alone", at
        elif not job.asks and job.made < KNOWN:
            yield "ask", at
    yield from ((what, 0) for what in ("announce", "plan", "tick") if may(state, what))


def reads_alone(state: State, at: int) -> bool:
    """Whether a job asks for a batch that the service is not about to have: after ten seconds it reads it alone."""
    job = state.jobs[at]
    return job.waits and not any((at, job.made) in step for step in state.steps)


def may(state: State, what: str) -> bool:
    """Whether the service may do this now. Time that nobody waits in is of no account."""
    if what == "announce":
        return bool(state.steps) and len(state.kept) < ROOM
    if what == "plan":
        return any(job.there and max(job.planned, job.made) < KNOWN for job in state.jobs)
    return any(job.waits for job in state.jobs)


def next_of_service(state: State) -> State | None:
    """What comes next where no job does anything; None if nothing does."""
    what = next((one for one in ("announce", "plan", "tick") if may(state, one)), None)
    return None if what is None else after(state, (what, 0))


def after(state: State, event: Event) -> State:
    """The state after this event."""
    what, at = event
    if what == "plan":
        return plan(state)
    if what == "announce":
        return announce(state)
    if what == "tick":
        return look(state, 1)
    job = state.jobs[at]
    changed = {
        "join": job._replace(joined=True, made=1),  # it reads one batch by itself meanwhile
        "leave": GONE,
        "ask": job._replace(asks=True),
        "take": job._replace(made=job.made + 1, asks=False),
        "alone": job._replace(made=job.made + 1, asks=False),
    }[what]
    found = state._replace(jobs=(*state.jobs[:at], changed, *state.jobs[at + 1 :]))
    return look(found, 0) if what in ("leave", "take", "alone") else found


def plan(state: State) -> State:
    """Each job that has told of more has one batch in each of the next steps, as long as it has any."""
    jobs, wanted = list(state.jobs), dict[int, range]()
    for at, job in enumerate(jobs):
        if job.there:
            if job.made > job.planned:  # by itself, which it does until the steps before have been made
                jobs[at] = job = job._replace(planned=job.made + len(state.steps))
            if job.planned < KNOWN:
                wanted[at] = range(job.planned, KNOWN)
                jobs[at] = job._replace(planned=KNOWN)
    most = max(map(len, wanted.values()), default=0)
    more = (tuple((at, own[step]) for at, own in wanted.items() if step < len(own)) for step in range(most))
    return state._replace(jobs=tuple(jobs), steps=(*state.steps, *more))


def announce(state: State) -> State:
    step, jobs = state.steps[0], list(state.jobs)
    for at, number in step:
        if jobs[at].there:
            jobs[at] = jobs[at]._replace(announced=number + 1)
    return State(tuple(jobs), state.steps[1:], (*state.kept, step), state.holders)


def look(state: State, ticks: int) -> State:
    """What the service does when it is rung, or some time has passed."""
    full = ticks if state.holders and len(state.kept) >= ROOM and state.steps else 0
    waiting = [at for at, job in enumerate(state.jobs) if full and job.waits]
    planned = [at for at in waiting if state.jobs[at].announced < state.jobs[at].planned]
    jobs = []
    for at, job in enumerate(state.jobs):
        if not job.joined or job.left:
            jobs.append(job)
            continue
        holds = full if at in state.holders else 0
        stands = holds and job.made == job.seen and any(other != at for other in waiting)
        holds_back = holds and any(other != at for other in planned)
        held = job.held + 4 * holds if holds_back else max(0, job.held - ticks)
        jobs.append(job._replace(held=held, stood=job.stood + holds if stands else 0, seen=job.made))
    state = give_back(state._replace(jobs=tuple(jobs)))
    holders = tuple(at for at, number in (state.kept[0] if state.kept else ()) if not done(state.jobs[at], number))
    behind = [at for at in holders if max(state.jobs[at].held / 4, state.jobs[at].stood) > SLACK]
    jobs = [GONE if at in behind else job for at, job in enumerate(state.jobs)]
    return give_back(state._replace(jobs=tuple(jobs), holders=holders))


def done(job: Job, number: int) -> bool:
    return job.left or job.made > number


def give_back(state: State) -> State:
    kept = deque(state.kept)
    while kept and all(done(state.jobs[at], number) for at, number in kept[0]):
        kept.popleft()
    return state._replace(kept=tuple(kept))


# --- what must hold ----


def problem(state: State) -> str:
    """What is wrong with a state; empty if nothing is."""
    if len(state.kept) > ROOM:
        return "more steps are kept than there is room for"
    for at, job in enumerate(state.jobs):
        if job.there and max(job.held / 4, job.stood) > SLACK + 1:
            return f"job {at} holds back others for longer than the slack"
        numbers = [number for step in (*state.kept, *state.steps) for other, number in step if other == at]
        if numbers != sorted(set(numbers)):
            return f"job {at} has a batch twice, or not in order: {numbers}"
    return ""


def wait_without_end(state: State, known: set[State]) -> bool:
    """Whether a job waits for ever, if no job does anything but end its wait. `known` are states in which none does."""
    path = list[State]()
    while state not in known and any(job.waits and not reads_alone(state, at) for at, job in enumerate(state.jobs)):
        if state in path or (following := next_of_service(state)) is None:
            return True
        path.append(state)
        state = following
    known.update(path)
    return False
