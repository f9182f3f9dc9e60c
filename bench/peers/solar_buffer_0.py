"""solar.DataLoader without a buffer, where its default may be one: what a batch needs is decoded for it."""

from __future__ import annotations

from typing import Any

from bench.peers.solar_loader import batches, epochs
from bench.scene import Scene

__all__ = ["batches", "epochs"]

LABEL = "solar.DataLoader(buffer=0)"


def lacking(scene: Scene) -> str:
    return "" if scene.chunk not in (None, 1) else "the default has no buffer here"


def settings(scene: Scene) -> list[dict[str, Any]]:
    return [{"buffer": 0}]
