"""Writes golden chunks that are not there yet; those that are stay as they are, for ever.

Those of the learned predictor, which was removed, stay for the error that they give.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from solar import _native

HERE = Path(__file__).parent


def main() -> None:
    rng = np.random.default_rng(1)
    walk = np.cumsum(np.cumsum(rng.normal(size=(3, 17, 40)), axis=1), axis=2).astype(np.float32)
    marked = walk.copy()
    marked.flat[rng.integers(0, walk.size, 40)] = [np.nan, np.inf, -np.inf, -0.0] * 10
    marked[1, 3:6] = 1e20
    counts = rng.poisson(3, (20, 50))
    heavy = (rng.standard_t(1.2, 5000) * 1e3).astype(np.float32)
    tables = _native.train([walk], 0.01)
    cases = {
        "pack-xyz": (walk, 0.05, "pack", "xyz", b""),
        "dense-xy": (walk, 0.001, "dense", "xy", b""),
        "dense-interpolated": (walk, 0.5, "dense", "interpolation", b""),
        "pack-interpolated": (walk[0], 0.1, "pack", "interpolation", b""),
        "dense-trained": (walk, 0.01, "dense", "auto", tables),
        "kept-runs": (marked, 0.1, "dense", "auto", b""),
        "escapes": (heavy, 1e-4, "dense", "none", b""),
        "bits-of-float32": (marked, 0.0, "dense", "x", b""),
        "lattice-of-float32": ((counts * 0.25).astype(np.float32), 0.0, "dense", "x", b""),
        "float64": (walk.astype(np.float64), 1e-6, "pack", "xyz", b""),
        "raw-float64": (rng.normal(size=70), 0.0, "pack", "x", b""),
        "int16": (counts.astype(np.int16), 0.0, "dense", "auto", b""),
        "uint8-bounded": (counts.astype(np.uint8), 2.0, "pack", "xy", b""),
        "int64-far": (counts.astype(np.int64) + 2**60, 0.0, "pack", "x", b""),
        "uint32": ((counts * 200_000_000 % 2**32).astype(np.uint32), 0.0, "pack", "xy", b""),
        "pack-patches": (walk, 0.05, "pack", "patches", b""),
        "dense-patches": (counts.astype(np.int16), 0.0, "dense", "patches", b""),
        "constant": (np.full((4, 5000), 2.5, np.float32), 0.1, "auto", "auto", b""),
        "empty": (np.empty((0, 3), np.float32), 0.1, "auto", "auto", b""),
    }
    index_path = HERE / "index.json"
    index = json.loads(index_path.read_text()) if index_path.exists() else {}
    for name in sys.argv[1:] or cases:
        array, bound, coder, predictor, with_tables = cases[name]
        if name in index:
            continue
        chunk = _native.encode(np.ascontiguousarray(array), bound, coder, predictor, with_tables)
        out = np.empty_like(np.ascontiguousarray(array))
        _native.decode_into(chunk, out, with_tables, "plain")
        assert _native.compare(np.ascontiguousarray(array), out, bound)[0] == 0
        (HERE / f"{name}.chunk").write_bytes(chunk)
        index[name] = {
            "type": array.dtype.str,
            "shape": list(array.shape),
            "tables": with_tables.hex(),
            "sha256": hashlib.sha256(out.tobytes()).hexdigest(),
        }
    index_path.write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
