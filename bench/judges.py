"""The formats and loaders that solar is judged by beside HDF5's, in an environment of their own: build/judges.

    python -m bench.judges          # makes it, some minutes

What it has not itself, such as torch and h5py, it takes from the environment that makes it. `python -m bench.shapes`
runs those that are there, and says of the others that they were not.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from functools import cache
from pathlib import Path

from bench.records import ROOT

FOLDER = ROOT / "build" / "judges"
PACKAGES = ("pylance==14.0.2", "blosc2==4.14.1", "zarr==3.1.6", "anndata==0.12.19", "scdataset==0.3.0")
NEWER = "annbatch needs Python 3.12 or later"


def python() -> Path:
    return FOLDER / "bin" / "python"


@cache
def lacking(package: str) -> str:
    """Why it cannot run; "" when it can."""
    if package == "annbatch" and sys.version_info < (3, 12):
        return NEWER
    look = f"import importlib.metadata; importlib.metadata.version({package!r})"
    if python().exists() and not subprocess.run([python(), "-c", look], capture_output=True).returncode:
        return ""
    return f"{package} is not in {FOLDER.relative_to(ROOT)} (python -m bench.judges)"


def main() -> None:
    if not python().exists():
        venv.create(FOLDER, with_pip=True)
    own = subprocess.run(
        [python(), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    ).stdout.strip()
    Path(own, "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    raise SystemExit(subprocess.run([python(), "-m", "pip", "install", "--quiet", *PACKAGES]).returncode)


if __name__ == "__main__":
    main()
