"""The structure that tools/structure measures: small classes, so that one can be read at a time."""

from __future__ import annotations

import ast
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Values, whose attributes are facts that stand beside each other, and classes whose attributes users write or read.
LARGE = {
    "DataLoader": "the arguments of torch's, and ours",
    "Field": "its arguments",
    "Job": "what the plan of a training follows from",
    "H5Dataset": "what its arguments say, and pickles of earlier versions name",
    "Kept": "what `verify` found out",
    "Layout": "what `inspect` found out, and saved tables name",
    "PlanSampler": "those of torch's DistributedSampler",
    "PreparedLoader": "those of Accelerate's loaders",
    "Units": "the columns of a table",
}


def test_no_class_has_more_than_twelve_attributes() -> None:
    loader = SourceFileLoader("structure", str(ROOT / "tools" / "structure"))
    spec = spec_from_loader("structure", loader)
    assert spec is not None
    structure = module_from_spec(spec)
    loader.exec_module(structure)
    large = {
        node.name: len(structure.attributes_of(node))
        for folder in ("solar", "io")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and len(structure.attributes_of(node)) > 12
    }
    assert large.keys() == LARGE.keys(), large
