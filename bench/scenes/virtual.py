"""A virtual dataset over contiguous sources, which libhdf5 reads: what it costs beside `contiguous_64k`."""

from __future__ import annotations

from bench.scene import Scene

SCENES = (Scene("virtual_64k", "64 KB, virtual, of 8 files", 8192, (128, 128), "f4", sources=8, quick=False),)
