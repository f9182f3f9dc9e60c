"""Mounts a folder slowed until Ctrl-C, or tells what such a mount gives.

python -m bench.slowfs [FOLDER] [--latency 0.001] [--bandwidth 1e9] [--iops 500] [--rpc 4194304]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
from pathlib import Path

from bench import slowfs
from bench.slowfs import calibrate


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.slowfs", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="to mount until Ctrl-C; without it a mount is measured")
    parser.add_argument("--latency", type=float, default=slowfs.LATENCY, help="seconds (%(default)s)")
    parser.add_argument("--bandwidth", type=float, default=slowfs.BANDWIDTH, help="bytes a second (%(default)g)")
    parser.add_argument("--iops", type=float, default=slowfs.IOPS, help="requests a second (%(default)g)")
    parser.add_argument("--rpc", type=int, default=0, help="bytes of a request at most; 0: any (%(default)s)")
    parser.add_argument("--json", action="store_true", help="measurements as JSON lines")
    asked = parser.parse_args()
    if reason := slowfs.lacking():
        sys.exit(reason)
    costs = {"latency": asked.latency, "bandwidth": asked.bandwidth, "iops": asked.iops, "rpc": asked.rpc}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if asked.folder:
        with slowfs.mounted(asked.folder, **costs) as mount, contextlib.suppress(KeyboardInterrupt):
            print(mount.path, flush=True)
            signal.pause()
        return
    with calibrate.folder() as source, slowfs.mounted(source, **costs) as mount:
        for found in calibrate.measure(mount):
            print(json.dumps(found) if asked.json else calibrate.line(found), flush=True)


if __name__ == "__main__":
    main()
