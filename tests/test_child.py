"""A guarded child: what is said, how its end is noticed, and that it leaves nothing behind."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from solar.io.system.child import Child, Lost, Silent, ending
from solar.io.system.waiting import WaitTimeout, polling, until

ECHO = """
import os, signal, time
def main(caller, *arguments):
    while True:
        asked = caller.receive()
        payload = bytes(caller.take(caller.nbytes))
        if asked == "arguments":
            caller.send(arguments)
        elif asked == "fork":
            child = os.fork()
            if not child:
                time.sleep(1000)
            caller.send(child)
        elif asked == "grow":
            caller.allow(0)
            try:
                caller.send(len(bytearray(4 << 30)))
            except MemoryError:
                caller.send("too much")
        elif isinstance(asked, int):
            os._exit(asked) if asked >= 0 else os.kill(os.getpid(), -asked)
        else:
            caller.send(asked, payload)
"""
SOON = 60.0


@pytest.fixture
def program(tmp_path: Path) -> ModuleType:
    made = ModuleType("echo")
    made.__file__ = str(tmp_path / "echo.py")
    Path(made.__file__).write_text(ECHO)
    return made


@pytest.fixture
def child(program: ModuleType) -> Iterator[Child]:
    child = Child(program, "one", "two", group=True)
    yield child
    child.stop()


def said(child: Child, what: object, payload: bytes = b"", seconds: float = SOON) -> tuple[object, bytes]:
    with child.talk(seconds) as end:
        end.send(what, payload)
        return end.receive(), bytes(end.take(end.nbytes))


@pytest.mark.parametrize("nbytes", [0, 1, 1 << 16, (3 << 20) + 1])
def test_headers_and_payloads_of_any_size_cross_and_come_back(child: Child, nbytes: int) -> None:
    payload = os.urandom(nbytes)
    assert said(child, {"name": "µ", "list": [1, None]}, payload) == ({"name": "µ", "list": [1, None]}, payload)
    assert said(child, "arguments") == (["one", "two"], b"")


def test_two_threads_may_stop_it_at_the_same_time(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    said(child, "arguments")
    killpg = os.killpg

    def meanwhile(group: int, number: int) -> None:
        monkeypatch.setattr(os, "killpg", killpg)
        child.stop()  # as the end of the program does, while the one who talks stops it
        killpg(group, number) if os.path.exists(f"/proc/{group}") else None

    monkeypatch.setattr(os, "killpg", meanwhile)
    child.stop()
    assert said(child, "arguments") == (["one", "two"], b"")


@pytest.mark.parametrize("how", [7, -signal.SIGSEGV, -signal.SIGKILL])
def test_its_end_is_told_in_words_and_the_next_question_gets_a_new_one(child: Child, how: int) -> None:
    with pytest.raises(Lost) as lost:
        said(child, int(how))
    assert (str(lost.value), lost.value.code) == (ending(how), how)
    assert said(child, "once more")[0] == "once more"


def test_its_end_is_noticed_where_what_it_started_holds_the_conversation_open_and_that_ends_too(child: Child) -> None:
    grandchild, _ = said(child, "fork")
    assert isinstance(grandchild, int)
    with pytest.raises(Lost, match="ended with exit code 3"):
        said(child, 3)
    assert until(polling(lambda: not running(grandchild)), SOON)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def test_one_that_hangs_is_given_up_and_is_no_more(child: Child) -> None:
    said(child, "here")
    pid = child.pid
    child.signal(signal.SIGSTOP)
    with pytest.raises(Silent, match=r"gave no sign of life for 0.2 s"):
        said(child, "still here?", seconds=0.2)
    assert not Path(f"/proc/{pid}").exists()


def test_its_memory_has_a_limit(child: Child) -> None:
    assert said(child, "grow")[0] == "too much"


def test_it_is_heard_where_many_files_are_open(child: Child) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("no process may have so many files open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    there = [os.open("/dev/null", os.O_RDONLY) for _ in range(1050)]
    try:
        assert said(child, "here")[0] == "here"
    finally:
        for one in there:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_goes_wrong_within_ends_the_conversation_and_stays_what_it_was(child: Child) -> None:
    said(child, "here")
    pid = child.pid
    with pytest.raises(ZeroDivisionError), child.talk(SOON):
        _ = 1 / 0
    assert not Path(f"/proc/{pid}").exists()


# --- waiting ----


def test_waiting_ends_with_what_was_waited_for_or_with_the_time() -> None:
    looks: list[int] = []
    assert until(polling(lambda: len(looks) == 3), None, lambda: looks.append(0)) is True
    assert until(polling(lambda: ""), 0.05) == ""
    assert until(polling(lambda: "there"), 0) == "there", "what is there is seen, also where there is no time"


def test_what_makes_waiting_vain_is_raised() -> None:
    def look() -> None:
        raise WaitTimeout("it is gone")

    with pytest.raises(WaitTimeout, match="it is gone"):
        until(polling(lambda: False), SOON, look)


def test_ctrl_c_is_heard_while_waiting() -> None:
    def pressed(nap: float) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(nap)
        return False

    with pytest.raises(KeyboardInterrupt):
        until(pressed)
