"""The public names, the start of the command, and the native boundary."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import solar
from solar import _native
from solar.errors import CodecError, LayoutError, PlanError, ReadError, SolarError

pytestmark = pytest.mark.every_case

ROOT = Path(__file__).parent.parent


def test_every_public_name_can_be_had() -> None:
    for name in solar.__all__:
        assert getattr(solar, name) is not None
    assert set(solar.__all__) <= set(dir(solar))


def test_importing_solar_or_reading_its_help_imports_no_torch() -> None:
    code = (
        "import sys, solar, solar.cli\n"
        "try: solar.cli.main(['--help'])\n"
        "except SystemExit as end: assert end.code in (0, None)\n"
        "assert 'torch' not in sys.modules and 'h5py' not in sys.modules, 'too much is imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_command_and_its_function_share_their_name() -> None:
    for name in ("compress", "inspect", "verify"):
        assert callable(getattr(solar, name))
        assert callable(import_module(f"solar.cli.{name}").run)


def test_errors_are_one_tree_and_also_what_python_programmers_catch() -> None:
    kinds = {LayoutError: ValueError, PlanError: ValueError, ReadError: OSError, CodecError: ValueError}
    for kind, builtin in kinds.items():
        assert issubclass(kind, SolarError)
        assert issubclass(kind, builtin)


def test_the_stub_names_what_the_native_module_has() -> None:
    stub = ast.parse((ROOT / "solar" / "_native.pyi").read_text())
    types_only = {"Dataset", "Metadata"}
    named: dict[str, set[str]] = {}
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            named[node.name] = set()
        elif isinstance(node, ast.ClassDef) and node.name not in types_only:
            named[node.name] = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    assert set(named) == {name for name in dir(_native) if not name.startswith("_")}
    for name, members in named.items():
        have = {member for member in dir(getattr(_native, name)) if not member.startswith("_")}
        assert not members or members - {"__init__"} == have, name
