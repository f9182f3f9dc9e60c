"""One sample per file: opening is the work."""

from __future__ import annotations

from bench.scene import Scene

SCENES = (Scene("many_files", "64 KB, one sample per file", 4096, (128, 128), "f4", files=4096, quick=False),)
