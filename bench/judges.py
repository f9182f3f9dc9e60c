"""The formats and loaders that solar is judged by beside HDF5's, in an environment of their own: build/judges.

    python -m bench.judges          # makes it, some minutes
    python -m bench.judges --list   # what it would install

What it has not itself, such as torch and h5py, it takes from the environment that makes it. Those that need a newer
Python than that have one more of their own, build/judges-newer, where such a Python is found. `python -m bench.shapes`
runs those that are there, and says of the others that they were not.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import venv
from functools import cache
from pathlib import Path

from bench.records import ROOT

FOLDER = ROOT / "build" / "judges"
PACKAGES = ("pylance==14.0.2", "blosc2==4.14.1", "zarr==3.1.6", "anndata==0.12.19", "scdataset==0.3.0")
DATA = "scanpy==1.11.5"  # for a real .h5ad file that it ships
NEWER_FOLDER, NEWER_PYTHON = ROOT / "build" / "judges-newer", (3, 12)
NEWER_PACKAGES = ("annbatch[zarrs,numba]==0.3.1", "psutil")


def python(package: str = "") -> Path:
    """That of the environment which has it."""
    return (NEWER_FOLDER if package == "annbatch" else FOLDER) / "bin" / "python"


@cache
def lacking(package: str) -> str:
    """Why it cannot run; "" when it can."""
    look = f"import importlib.metadata; importlib.metadata.version({package!r})"
    own = python(package)
    if own.exists() and not subprocess.run([own, "-c", look], capture_output=True).returncode:
        return ""
    needs = f"; needs Python {said(NEWER_PYTHON)} or later" if package == "annbatch" else ""
    return f"{package} is not in {own.parent.parent.relative_to(ROOT)} (python -m bench.judges{needs})"


def said(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def shipped(name: str) -> Path | None:
    """A file that a package there has among its data."""
    return next(FOLDER.glob(f"lib/python*/site-packages/{name}"), None)


def newer(least: tuple[int, int]) -> str | None:
    """A Python of this version or a later one: this one, or one that can be found and runs."""
    if sys.version_info >= least:
        return sys.executable
    for minor in range(least[1], least[1] + 6):
        found = shutil.which(f"python{said((least[0], minor))}")
        if found and not subprocess.run([found, "-c", ""], capture_output=True).returncode:
            return found
    return None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.judges", description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print what would be installed, and install nothing")
    if parser.parse_args().list:
        print("\n".join([*PACKAGES, DATA, *NEWER_PACKAGES]))
        return
    if not python().exists():
        venv.create(FOLDER, with_pip=True)
    own = subprocess.run(
        [python(), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    ).stdout.strip()
    Path(own, "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    failed = installed(python(), *PACKAGES) | installed(python(), "--no-deps", DATA)
    if (found := newer(NEWER_PYTHON)) is None:
        print(f"no Python {said(NEWER_PYTHON)} or later was found: {NEWER_PACKAGES[0]} is left out")
    else:
        if not python("annbatch").exists():
            subprocess.run([found, "-m", "venv", NEWER_FOLDER], check=True)
        failed |= installed(python("annbatch"), *NEWER_PACKAGES)
    raise SystemExit(failed)


def installed(own: Path, *packages: str) -> int:
    return subprocess.run([own, "-m", "pip", "install", "--quiet", *packages]).returncode


if __name__ == "__main__":
    main()
