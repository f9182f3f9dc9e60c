"""Records: JSON lines that say when they were made, so that a run which was ended goes on where it was."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Record = dict[str, Any]
RECENT = timedelta(hours=1)  # a record that is no older is not measured again by the same command


def read(path: Path) -> list[Record]:
    """All records of a file; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, record: Record) -> None:
    """Adds a line, with the time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        print(json.dumps({"made": datetime.now(UTC).isoformat(timespec="seconds"), **record}), file=file)


def found(path: Path, **same: Any) -> Record | None:
    """The newest record of the last hour in which these are the same and nothing failed."""
    limit = datetime.now(UTC) - RECENT
    for record in reversed(read(path)):
        fresh = "made" in record and datetime.fromisoformat(record["made"]) >= limit
        whole = "failed" not in record and "skipped" not in record
        if fresh and whole and all(record.get(name) == value for name, value in same.items()):
            return record
    return None
