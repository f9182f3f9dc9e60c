"""The scenes: what lies in the file, and in what cache state it is read. Every scene is read in random order.

contiguous            64 KB, 3 MB and 17 MB samples as they are; warm, and cold
one_sample_chunks     one sample per chunk, unfiltered and with each filter that is decoded natively
many_sample_chunks    16 and 64 samples per chunk
auto_chunks           the chunks that h5py chooses by itself: each sample lies in 256 of them
many_files            one sample per file
codec                 our own codec, one sample per chunk
virtual               a virtual dataset over eight files
"""

from __future__ import annotations

import importlib

from bench.scene import Scene

FILES = ("contiguous", "one_sample_chunks", "many_sample_chunks", "auto_chunks", "many_files", "codec", "virtual")


def all_scenes() -> dict[str, Scene]:
    """Every scene by name, in the order of the report."""
    modules = [importlib.import_module(f"bench.scenes.{name}") for name in FILES]
    return {scene.name: scene for module in modules for scene in module.SCENES}
