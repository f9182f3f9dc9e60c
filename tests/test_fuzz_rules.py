"""What our Python may not do with data, by its source: run it, unpickle it, hand it to a shell, or foretell names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*(ROOT / "io").glob("*.py"), *(p for p in (ROOT / "solar").rglob("*.py") if "io" not in p.parts)])

# Never, wherever the argument comes from.
FORBIDDEN = {
    "eval", "exec", "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "marshal.loads",
    "marshal.load", "shelve.open", "yaml.load", "tempfile.mktemp",
}  # fmt: skip
UNPICKLING = {"pickle.load", "pickle.loads", "pickle.Unpickler", "cloudpickle.loads", "dill.loads"}
# What only comes from processes that we started, through pipes of our own, or from this process itself.
OUR_OWN = {"io/channels/worker_child.py", "io/channels/pickles.py", "solar/loader/torch_iterators.py"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def broken_rules(source: str, name: str) -> Iterator[str]:
    """The rules that a file's calls break, with their lines."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        called = dotted(call.func)
        words = {word.arg: word.value for word in call.keywords}
        unsafe = called in FORBIDDEN or (called in UNPICKLING and name not in OUR_OWN)
        shell, pickled, weights = (words.get(word) for word in ("shell", "allow_pickle", "weights_only"))
        unsafe |= any(isinstance(word, ast.Constant) and bool(word.value) for word in (shell, pickled))
        unsafe |= called == "torch.load" and not (isinstance(weights, ast.Constant) and weights.value is True)
        if unsafe:
            yield f"{name}:{call.lineno}: {called}"


def test_no_source_evaluates_unpickles_or_hands_to_a_shell_what_it_reads() -> None:
    assert len(SOURCES) > 100
    found = [one for path in SOURCES for one in broken_rules(path.read_text(), str(path.relative_to(ROOT)))]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "eval(x)",
        "os.system(x)",
        "subprocess.run(x, shell=True)",
        "pickle.loads(x)",
        "np.load(x, allow_pickle=True)",
        "torch.load(x)",
        "torch.load(x, weights_only=False)",
        "tempfile.mktemp()",
    ],
)
def test_each_rule_is_looked_at(line: str) -> None:
    assert [*broken_rules(line, "io/any.py")]
