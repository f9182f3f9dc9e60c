"""Files by URL for commands that read files alone: a copy here, for as long as the command runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from solar.cli.progress import shown
from solar.io.compress.preparation import Progress
from solar.io.machine.copied import copied
from solar.values import is_url


@contextmanager
def nearby(given: str, quiet: bool, beside: str | None = None) -> Iterator[str]:
    """The path of what is given, or of a copy of it: beside a file that is written, or among temporary ones."""
    if not is_url(given):
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="solar-") as folder:  # empty where it lies beside
        to = Path(folder, "copy.h5") if beside is None else Path(beside).absolute()
        with ExitStack() as left:
            with shown(quiet) as told:
                fetched = copied(given, to, lambda done, of: told(Progress("fetch", given, done, of)))
                path = left.enter_context(fetched)
            yield str(path)
