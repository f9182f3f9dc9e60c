"""What takes long, and bars that were asked for, in a real notebook: with ipywidgets and without."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest

LACKING = [one for one in ("nbclient", "nbformat", "ipykernel") if importlib.util.find_spec(one) is None]
WHY = f"not installed: {', '.join(LACKING)} (pip install nbclient ipykernel)"
needs_jupyter = pytest.mark.skipif(bool(LACKING), reason=WHY)
WITHOUT = "import sys; sys.modules['ipywidgets'] = None\n"  # as if it were not there
SHOWN = """
from solar.io.channels import progress as module
module.PATIENCE, module.EVERY, looks = 0.0, 0.01, []
def done():
    looks.append(1)
    return 3
with module.awaited("opening", done, 12, "files"):
    while len(looks) < 20:
        pass
"""
BAR = """
from solar.loader.metrics import progress
for _ in progress(range(5), "training"):
    pass
"""


def outputs(code: str) -> list[dict[str, Any]]:
    """What one cell shows, in a kernel of this Python."""
    import nbclient
    import nbformat

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    client = nbclient.NotebookClient(book, timeout=120, kernel_manager_class=_manager(argv))
    client.execute()
    return list(book.cells[0].outputs)


def _manager(argv: list[str]) -> Any:
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class Manager(AsyncKernelManager):  # type: ignore[misc]
        @property
        def kernel_spec(self) -> Any:
            return KernelSpec(argv=argv, display_name="this", language="python")

    return Manager


def text_of(found: list[dict[str, Any]]) -> str:
    return "".join(one["text"] for one in found if one["output_type"] == "stream")


@needs_jupyter
@pytest.mark.parametrize(("code", "said"), [(SHOWN, "3/12"), (BAR, "5/5")], ids=["awaited", "bar"])
def test_without_ipywidgets_it_is_a_line_of_text_and_no_warning(code: str, said: str) -> None:
    found = outputs(WITHOUT + code)
    assert said in text_of(found) and "arning" not in text_of(found)
    assert [one for one in found if one["output_type"] != "stream"] == []


@needs_jupyter
@pytest.mark.parametrize("code", [SHOWN, BAR], ids=["awaited", "bar"])
def test_with_ipywidgets_it_is_a_widget(code: str) -> None:
    pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")
    found = outputs(code)
    assert "arning" not in text_of(found)
    assert code == SHOWN or any("application/vnd.jupyter.widget-view+json" in one.get("data", {}) for one in found)
