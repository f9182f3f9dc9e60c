"""A wheel that `make wheel` has built: installed where nothing else of solar is, it works."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parent.parent
WHEELS = sorted((ROOT / "build" / "wheels").glob("solar-*.whl"))
FOUND = [one for one in WHEELS if parse_wheel_filename(one.name)[3] & {*sys_tags()}]
EPOCH = """
def train_step(x, y):
    assert x.shape[1:] == (8, 8) and y.shape[1:] == (8, 8)
    seen.append(len(x))

seen = []
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    if not FOUND:
        pytest.skip("no wheel in build/wheels for this Python: `make wheel` builds one")
    return FOUND[0]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that has the wheel; what the wheel needs comes from this environment."""
    folder = tmp_path_factory.mktemp("wheel") / "environment"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, *install], check=True)
    own = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (own / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n")  # after its own, and without its .pth files
    return python


def ran(python: Path, folder: Path, *words: str) -> str:
    done = subprocess.run([python, *words], cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment_passes_its_self_test(wheel: Path, installed: Path, tmp_path: Path) -> None:
    where = ran(
        installed, tmp_path, "-c", "import solar, solar._native as native; print(solar.__file__, native.__file__)"
    )
    assert all(Path(one).is_relative_to(installed.parent.parent) for one in where.split())
    ran(installed, tmp_path, "-m", "solar.selftest")
    assert ran(installed.parent / "solar", tmp_path, "--version").strip().endswith(wheel.name.split("-")[1])


@pytest.mark.slow
def test_the_first_lines_of_the_readme_run_with_a_wheel(installed: Path, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        for name in ("/entry/data/counts", "/entry/truth/phase"):
            file[name] = np.zeros((200, 8, 8), "f4")
    (lines, *_) = re.findall(r"<!-- runs -->\n\n```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = EPOCH + lines.replace("range(100)", "range(2)") + "\nassert sum(seen) == 2 * 200\n"
    ran(installed, tmp_path, "-W", "error", "-c", program)


def test_a_wheel_has_its_native_part_its_plug_in_and_its_licence_and_no_sources(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [one for one in names if re.fullmatch(r"solar/_native\..*\.so", one)]
    assert any(one.startswith("solar/plugins/") and one.endswith(".so") for one in names)
    assert any(one.endswith("/licenses/LICENSE") for one in names)
    assert not [one for one in names if one.endswith((".cpp", ".hpp", ".a")) or one.startswith(("tests/", "bench/"))]
