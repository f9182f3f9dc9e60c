"""Programs that the benchmarks compile: who else could have made one has none run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bench import compiled, pread, slowfs

MAKES = ["/bin/sh", "-c", 'echo made >"$2"', "sh"]  # with -o and the place behind it


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    return tmp_path / "solar-bench"


def test_a_program_is_made_once_where_nobody_else_can_write(folder: Path) -> None:
    made = compiled.kept("one", MAKES)
    assert made == folder / "one" and made.read_text() == "made\n"
    assert [one.stat().st_mode & 0o777 for one in (folder, made)] == [0o700, 0o700]
    assert compiled.kept("one", ["/bin/false"]) == made
    with pytest.raises(subprocess.CalledProcessError):
        compiled.kept("two", ["/bin/false"])


@pytest.mark.parametrize("wrong", ["open folder", "a link as folder", "another's folder", "open program", "a link"])
def test_what_somebody_else_could_have_made_is_not_run(
    wrong: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(mode=0o700)
    (folder / "one").touch(mode=0o700)
    user = os.geteuid()
    if wrong == "open folder":
        folder.chmod(0o777)
    elif wrong == "a link as folder":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    elif wrong == "another's folder":
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    elif wrong == "open program":
        (folder / "one").chmod(0o722)
    else:
        (folder / "one").unlink()
        (folder / "one").symlink_to("/bin/true")
    with pytest.raises(RuntimeError, match="could have made"):
        compiled.kept("one", MAKES)


@pytest.mark.parametrize("build", [lambda: slowfs.build("replay"), pread.build.__wrapped__], ids=["replay", "pread"])
def test_what_lies_among_temporary_files_by_such_a_name_is_not_taken(
    build: object, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can put a file there before this user does."""
    ran = list[str]()
    monkeypatch.setattr(compiled, "kept", lambda name, command: ran.append(name) or folder / name)
    monkeypatch.setattr("ctypes.CDLL", str)
    assert callable(build)
    assert Path(build()).parent == folder and len(ran) == 1
