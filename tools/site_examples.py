"""Examples in docstrings become blocks of code in the site's reference: mkdocstrings loads this (mkdocs.yml)."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^>>> (?:.+\n?)+", re.MULTILINE)
SETTING = re.compile(r" +# doctest: .*")


class Examples(Extension):
    """Fences what begins with >>>, up to the next empty line."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(fenced, obj.docstring.value)


def fenced(found: re.Match[str]) -> str:
    return f"```pycon\n{SETTING.sub('', found[0]).rstrip()}\n```\n"
