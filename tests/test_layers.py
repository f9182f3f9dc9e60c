"""The import law: which shelf may import which. docs/architecture.md draws them, their READMEs say what is on them."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import solar

pytestmark = pytest.mark.every_case

ROOT = Path(__file__).parent.parent
VALUES = "errors values _native"
IO = "io.waiting io.world io.remote io.system io.channels io.hdf5 io.reading"

# A shelf, and what it may import of solar. A shelf is a folder, or some modules of one that have a line of their own.
MAY_IMPORT = {
    "public": "",  # what `from solar import` gives to users
    "errors": "",
    "samples.blocks": f"{VALUES}",
    "values": "errors _native",
    "io.waiting": "errors",
    "io.world": f"{VALUES}",
    "io.remote": f"{VALUES} io.waiting",
    "io.system": f"{VALUES} io.remote io.waiting io.world",
    "io.channels": f"{VALUES} io.system io.waiting io.world",
    "io.hdf5": f"{VALUES} io.channels io.remote io.system io.waiting",
    "io.reading": f"{VALUES} io.hdf5 io.remote io.system io.waiting",
    "io.codec": f"{VALUES} {IO}",
    "io.example_files": "",
    "filters": "io.codec",
    "samplers.orders": "errors _native",
    "samplers.states": "errors",
    "planning": f"{VALUES} io.system samplers.orders",
    "distributed": f"{VALUES} {IO}",
    "distributed.torch_ranks": f"{VALUES} io.channels",
    "samples": f"{VALUES} {IO} samples.blocks",
    "samplers": f"{VALUES} {IO} samplers.orders samplers.states samples",
    "loader.report": "_native io.system io.waiting",
    "loader.batches": f"{VALUES} {IO} buffer loader.report samplers samples",
    "buffer": f"{VALUES} {IO} distributed loader.report planning samplers samples",
    "service": f"{VALUES} {IO} distributed planning samples",
    "service.client": f"{VALUES} {IO} buffer planning samplers samples",
    "device.kernels": VALUES,
    "device": f"{VALUES} {IO} buffer device.kernels loader.batches loader.report samples",
    "loader": f"{VALUES} {IO} buffer device loader.batches loader.report samplers samples service.client",
    "arrays": f"{VALUES} {IO} buffer loader.batches loader.report samplers samples",
    "training": f"{VALUES} {IO} io.codec loader.batches",
    "integrations": f"{VALUES} {IO} arrays loader public samplers samples",
    "baseline.h5py_samples": f"{VALUES} {IO} samples",
    "baseline": f"{VALUES} baseline.h5py_samples",
    "cli": f"{VALUES} {IO} baseline baseline.h5py_samples distributed.torch_ranks filters io.codec io.example_files "
    "planning public samplers.orders samples service training",
}
LAW = {shelf: set(may.split()) for shelf, may in MAY_IMPORT.items()}

# Modules that are on another shelf than their folder's.
APART = {
    "io.channels.world": "io.world",
    "io.system.lifecycle": "io.waiting",
    "io.system.waiting": "io.waiting",
    "loader.batch": "loader.batches",
    "loader.batch_queue": "loader.batches",
    "loader.collate": "loader.batches",
    "loader.stats": "loader.report",
    "loader.uneven": "loader.batches",
    "loader.batch_sources": "loader.batches",
    "loader.lent": "loader.batches",
    "samplers.mixed_blocks": "samplers.orders",
    "samples.boxes": "values",
    "samples.row_blocks": "samples.blocks",
    "samples.row_windows": "values",
    "service.connection": "service.client",
    "service.served_passes": "service.client",
    "service.served_data": "service.client",
    "service.served_run": "service.client",
}

# outside package: the layers that may import it
FRAMEWORKS = ("accelerate", "dlio_benchmark", "grain", "ignite", "lightning", "physicsnemo", "ray", "torchdata")
FRAMEWORKS += ("transformers",)
OF_TORCH = {"baseline", "buffer", "device", "distributed", "integrations", "loader", "samplers", "samples", "training"}
GUARDED = {"torch": OF_TORCH, "triton": {"device"}, "h5py": {"baseline", "io"}}
GUARDED |= {"hdf5plugin": {"io"}, "mpi4py": {"io"}, "obstore": {"io"}}
GUARDED |= {framework: {"integrations"} for framework in FRAMEWORKS}


def name_of(path: Path) -> str:
    """A module's name, without `solar.` before it."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "solar" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    name_of(path): path
    for folder in ("solar", "io")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if name_of(path) not in ("", "__main__", "old_names", "selftest")  # the front doors
}


def shelf_of(module: str) -> str:
    """The longest name in the law that a module's begins with; the module itself where there is none."""
    while module and module not in LAW and module not in APART:
        module = module.rpartition(".")[0]
    return APART.get(module, module)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


@cache
def imports(path: Path, types: bool = False) -> list[str]:
    """What a file imports, by statement or by `import_module`; with `types` also what only the type checker reads."""
    return list(_imports(path, types))


def _imports(path: Path, types: bool) -> Iterator[str]:
    for_types = {
        inner
        for node in nodes_of(path)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in nodes_of(path):
        if node in for_types and not types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "import_module",
            "__import__",
        ):
            yield from spelled(node.args[0])


def spelled(name: ast.expr) -> Iterator[str]:
    """The module that a call imports, as far as it is written there; a name that only the user knows is none."""
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    if isinstance(first, ast.Constant):
        yield str(first.value).rstrip(".")


def of_solar(path: Path, types: bool = False) -> Iterator[tuple[str, str]]:
    """The shelves that a file imports, each with what it imports of it."""
    for name in imports(path, types):
        top, _, rest = name.partition(".")
        if top == "solar" and rest not in ("", "__version__"):
            first = rest.partition(".")[0]
            yield first if first == "_native" else "public" if rest in solar.__all__ else shelf_of(rest), name


@pytest.mark.parametrize("module", MODULES)
def test_a_shelf_imports_only_what_lies_below_it(module: str) -> None:
    shelf = shelf_of(module)
    assert shelf, f"{module} lies on no shelf of the law"
    for other, name in of_solar(MODULES[module]):
        assert other == shelf or other in LAW[shelf], f"{module} (shelf {shelf}) imports {name} (shelf {other or name})"


@pytest.mark.parametrize("module", MODULES)
def test_what_comes_from_outside_has_one_door(module: str) -> None:
    for name in imports(MODULES[module], types=True):
        top = name.partition(".")[0]
        assert module.partition(".")[0] in GUARDED.get(top, {module.partition(".")[0]}), f"{module} imports {name}"


def test_each_module_can_be_imported_before_all_others() -> None:
    graph = {}
    for module, path in MODULES.items():
        tree, needed = tree_of(path), set()
        for node in tree.body:  # what functions import comes later
            if isinstance(node, ast.ImportFrom):
                needed |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
            elif isinstance(node, ast.Import):
                needed |= {alias.name for alias in node.names}
        names = {name.removeprefix("solar.") for name in needed if name.startswith("solar.")}
        names |= {name.rpartition(".")[0] for name in names}  # whose __init__ runs first
        graph[module] = {name for name in names if name in MODULES and not f"{module}.".startswith(f"{name}.")}
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_no_shelf_is_above_itself() -> None:
    tuple(graphlib.TopologicalSorter({shelf: may - {"_native"} for shelf, may in LAW.items()}).static_order())


def test_no_two_shelves_name_each_other_not_even_for_types() -> None:
    named = {(shelf_of(module), other) for module, path in MODULES.items() for other, _ in of_solar(path, types=True)}
    assert [(one, two) for one, two in named if one < two and (two, one) in named] == []


def test_the_law_allows_no_more_than_is_used() -> None:
    used = defaultdict(set)
    for module, path in MODULES.items():
        used[shelf_of(module)] |= {other for other, _ in of_solar(path)}
    assert set(used) == set(LAW) - {"public"}
    everywhere = {*VALUES.split(), *IO.split()}
    assert {shelf: more for shelf, may in LAW.items() if (more := may - used[shelf] - everywhere)} == {}


@pytest.mark.parametrize("shelf", sorted({path.parent for path in MODULES.values()}), ids=str)
def test_a_shelf_has_a_page_with_a_line_for_each_of_its_files(shelf: Path) -> None:
    if shelf.name == "solar":  # the front doors
        return
    page = (shelf / "README.md").read_text()
    lines = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert {path.name for path in shelf.glob("*.py")} - {"__init__.py"} <= lines
    assert shelf.name == "planning" or len(page.splitlines()) < 60, "a shelf's page fits on one screen"


def test_a_name_has_one_meaning() -> None:
    classes, numbers = defaultdict(set), defaultdict(set)
    for module, path in MODULES.items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].add(module)
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            for target in targets:
                if isinstance(target, ast.Name) and target.id.isupper() and target.id not in ("DETAILS", "T"):
                    numbers[target.id].add(ast.unparse(node.value) if node.value else "")
    assert {name: where for name, where in classes.items() if len(where) > 1} == {}
    assert {name: values for name, values in numbers.items() if len(values) > 1} == {}  # DETAILS: each command's own


@pytest.mark.parametrize("module", [module for module in MODULES if not module.startswith("cli")])
def test_only_the_command_line_prints(module: str) -> None:
    for node in nodes_of(MODULES[module]):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
        assert called not in {"print", "eval", "exec", "input"}, f"{module}:{getattr(node, 'lineno', 0)}: {called}()"


def test_native_code_below_bind_knows_no_python_hdf5_or_mpi() -> None:
    forbidden = re.compile(r'#include\s+[<"](Python|nanobind/|hdf5\.h|H5|mpi\.h|pybind11/)')
    for folder in ("include", "src"):
        for path in (ROOT / "native" / folder).rglob("*.?pp"):
            assert not forbidden.search(path.read_text()), path


def test_no_source_file_exceeds_a_thousand_lines() -> None:
    for folder in ("solar", "io", "native/include", "native/src", "native/bind", "bench"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".cpp", ".hpp"} and not path.is_symlink():
                assert len(path.read_text().splitlines()) <= 1000, path


KINDS_OF_SAMPLES = set(
    ["RowWindows", "Boxes", "RowBlocks", "BoxBlocks", "RaggedRows", "RandomRows", "BoxRows", "RaggedFieldReader"]
)


@pytest.mark.parametrize("module", [module for module in MODULES if not module.startswith("samples.")])
def test_no_other_folder_asks_of_what_kind_samples_are(module: str) -> None:
    """The protocols of solar/samples/protocol.py are asked instead, so a new kind changes no other folder."""
    for node in nodes_of(MODULES[module]):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass", "type"):
            named = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            assert not named & KINDS_OF_SAMPLES, f"{module}:{node.lineno}: {ast.unparse(node)}"


def test_a_loader_of_a_local_file_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """Service, codec, exchange, device and training are imported when they are asked for."""
    program = (
        "import sys, h5py, numpy\n"
        "with h5py.File(sys.argv[1], 'w') as file: file['x'] = numpy.zeros((64, 8))\n"
        "from solar import DataLoader, H5Dataset\n"
        "for _ in DataLoader(H5Dataset(sys.argv[1], 'x'), 8, shuffle=True): pass\n"
        "print(*(name for name in sys.modules if name.partition('.')[0] == 'solar'))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.h5")]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    optional = ("solar.service", "solar.io.codec", "solar.distributed", "solar.device", "solar.training", "solar.cli")
    assert [name for name in loaded if name.startswith(optional)] == []
    assert len(loaded) <= 75


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_not_looked_for_while_solar_is_imported(collects: bool) -> None:
    """Each collection would walk through all of PyTorch. Whether there are any afterwards is left as it was."""
    program = (
        "import gc, torch, torch.utils.data\n"
        f"gc.enable() if {collects} else gc.disable()\n"
        "gc.collect()\n"
        "begun = []\n"
        "gc.callbacks.append(lambda phase, about: begun.append(phase))\n"
        "from solar import DataLoader, H5Dataset\n"
        "gc.callbacks.clear()\n"
        "print(begun.count('start'), gc.isenabled())"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert found[1] == str(collects)
    assert int(found[0]) <= 2  # one for each of the two names, when it is there


@pytest.mark.parametrize("module", [module for module in MODULES if module != "io.system.lifecycle"])
def test_forks_and_the_exit_have_one_hook(module: str) -> None:
    for node in nodes_of(MODULES[module]):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        assert called not in ("os.register_at_fork", "atexit.register", "threading._register_atexit"), module


def test_a_service_knows_no_torch() -> None:
    """A service begins in a fraction of the time, and with a fraction of the memory."""
    program = "import sys, solar.cli.serve, solar.service.service; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert found == "False\n"
