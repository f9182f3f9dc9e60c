"""docs/administrators.md: its table has every variable of the environment that the source looks at, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAME = re.compile(r"[A-Z][A-Z0-9_]{2,}")
PREFIX = "OMPI_COMM_WORLD_"


def asked_for(text: str) -> set[str]:
    """The names by which a module asks the environment, given as they stand or by a constant of the module."""
    if "os.environ" not in text and "os.getenv" not in text:
        return set()
    tree = ast.parse(text)
    constants = {
        target.id: [one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        keys: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            keys = [node.slice]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
            keys = node.args[:1]
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
            keys = [node.left]
        elif isinstance(node, ast.comprehension) and "os.environ" in text:
            keys = [node.iter]  # a constant that lists several
        for key in keys:
            values = [key.value] if isinstance(key, ast.Constant) else constants.get(getattr(key, "id", ""), [])
            found |= {value for value in values if isinstance(value, str) and NAME.fullmatch(value)}
    return found


def of_launchers() -> set[str]:
    text = (ROOT / "io/channels/world.py").read_text()
    body = text[text.index("def _torchrun") :]
    named = re.findall(r'(prefix \+ )?"([A-Z][A-Z0-9_]+)"', body)
    names = {(PREFIX if prefix else "") + name for prefix, name in named} - {"PMI", PREFIX}
    steps = re.findall(r'number_of_variable\("([A-Z_]+)"\)', text)
    return names | {*steps}


def test_every_variable_of_the_environment_is_in_the_table_and_no_other() -> None:
    looked_at = of_launchers() | {"RANK", "WORLD_SIZE"}
    for path in [*ROOT.glob("solar/**/*.py"), *ROOT.glob("io/**/*.py")]:
        looked_at |= asked_for(path.read_text())
    for path in [*ROOT.glob("native/bind/*.cpp"), *ROOT.glob("native/src/**/*.cpp")]:
        looked_at |= set(re.findall(r'getenv\("([A-Z_0-9]+)"\)', path.read_text()))
    assert {"SOLAR_THREADS", "HDF5_EXT_PREFIX", "SLURM_MEM_PER_NODE", "XDG_RUNTIME_DIR", "PMI_SIZE"} <= looked_at
    page = (ROOT / "docs/administrators.md").read_text()
    table = page[page.index("| variable | is |") : page.index("## Metrics")]
    rows = [row for row in table.splitlines() if row]
    told = {name for row in rows for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", row.split("|")[1])}
    assert told == looked_at
