"""solar.DataLoader that reads past the page cache, cold: an argument, and so a row of its own."""

from __future__ import annotations

from typing import Any

from bench.peers.solar_loader import batches, epochs
from bench.scene import Scene

__all__ = ["batches", "epochs"]

LABEL = "solar, H5Dataset(page_cache=False)"


def lacking(scene: Scene) -> str:
    return "" if scene.cache == "cold" else "the data are in the page cache"


def settings(scene: Scene) -> list[dict[str, Any]]:
    return [{"page_cache": False}]
