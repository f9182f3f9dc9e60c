"""What the pages need to become a site: MkDocs calls these while it builds (mkdocs.yml names this file).

The pages are written for any viewer of Markdown, with links to files wherever in the project those lie. Here pages from
outside docs/ get a place in the site, files that pages link to are copied beside them, and links are turned to both.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "build" / "site-source"
OUTSIDE = {  # page of the project -> page of the site
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "AGENTS.md": "agents.md",
    "bench/results/readers.md": "readers.md",
    "docker/README.md": "containers.md",
    "examples/README.md": "examples.md",
    "examples/first_steps.ipynb": "first-steps.md",
    "io/FORMAT.md": "format.md",
    "io/SERVICE.md": "service.md",
    "native/README.md": "native.md",
    "solar/planning/README.md": "planner.md",
}
DECISIONS = "decisions/index.md"
INSIDE = ("decisions/", "promises/", "changes.md")  # in a search these come behind the pages for users
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
REFERENCE = re.compile(r"^### \w+\n\n((?:.+\n)+)\n<!-- reference: ([\w.]+) -->", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LIST = re.compile(r"^(?!\s|[-*] |[|>#]|\d+\. )(.+)\n(?=(?:- |\d+\. ))", re.MULTILINE)


@event_priority(100)  # before the reference looks where its modules are
def on_config(config: Any) -> Any:
    """The decisions' pages, as many as there are, take the place of their folder in the navigation.

    The reference is made from a copy of the source, for its reader does not follow the link solar/io.
    """
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(ROOT / "solar", SOURCE / "solar", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for folder in {path.parent for path in (SOURCE / "solar").rglob("*.py")} | {SOURCE / "solar" / "io"}:
        (folder / "__init__.py").touch()  # nor a folder that is no package
    config.copyright = f"These pages are of solar {version()}."
    pages: list[Any] = [DECISIONS, *(f"decisions/{path.name}" for path in decisions())]
    for section in config.nav:
        for title, entries in section.items():
            if isinstance(entries, list):
                section[title] = [{"Decisions": pages} if one == "decisions/" else one for one in entries]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from outside, and what pages link to."""
    for source, place in OUTSIDE.items():
        if source.endswith(".ipynb"):
            text, pictures = page_of_notebook(ROOT / source, posixpath.splitext(place)[0])
            link = f'<a href="files/{source}" download>This page as a notebook</a>'  # of itself no page is copied
            files.append(File.generated(config, place, content=f"{text}\n{link}\n"))
            for name, content in (pictures | {f"files/{source}": (ROOT / source).read_bytes()}).items():
                files.append(File.generated(config, name, content=content))
        elif (ROOT / source).is_file():
            files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    files.append(File.generated(config, DECISIONS, content=listed()))
    for file in [*files.documentation_pages()]:
        for found in LINK.finditer(FENCE.sub("", file.content_string)):
            path = meant(source_of(file.src_uri), found["target"])
            copied = f"files/{path}"
            of_ours = path is not None and (ROOT / path).is_file() and not page_of(path) and path[:5] != "docs/"
            if of_ours and files.get_file_from_path(copied) is None:
                files.append(File.generated(config, copied, content=(ROOT / str(path)).read_bytes()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Turns the links, parts lists from the text before them, asks for the reference where a page marks it.

    The reference brings headings of its own.
    """
    of = source_of(page.file.src_uri)
    if page.file.src_uri.startswith(INSIDE):
        page.meta.setdefault("search", {"boost": 0.05})

    def turned(found: re.Match[str]) -> str:
        path = meant(of, found["target"])
        if path is None:
            return found[0]
        place = page_of(path) or (f"files/{path}" if (ROOT / path).is_file() else "")
        if path.startswith("docs/") and not page_of(path):
            place = path.removeprefix("docs/")
        if not place:  # a folder that is no page
            return found["text"]
        _, sign, heading = found["target"].partition("#")
        return f"{found['image']}[{found['text']}]({relative(place, page.file.src_uri)}{sign}{heading})"

    code = FENCE.findall(markdown)
    text = FENCE.sub("\0", markdown)
    text = LIST.sub(r"\1\n\n", LINK.sub(turned, text))
    text = REFERENCE.sub(reference, text)
    for block in code:
        text = text.replace("\0", block, 1)
    return text


def reference(found: re.Match[str]) -> str:
    """What mkdocstrings puts in the place of a heading and its text, of which what links to more stays."""
    more = [sentence.rstrip(".") + "." for sentence in " ".join(found[1].split()).split(". ") if "](" in sentence]
    return "\n\n".join((f"::: {found[2]}", *more))


# --- notebooks ----


def page_of_notebook(path: Path, name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown: its text, its code, and below each cell what it showed; and the pictures, by name."""
    parts, pictures = list[str](), dict[str, bytes]()
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                pictures[f"pictures/{name}-{number}.png"] = base64.b64decode(data["image/png"])
                parts.append(f'<img alt="What the cell shows" src="pictures/{name}-{number}.png">')
            elif "text/html" in data:
                parts.append("".join(data["text/html"]))
            else:
                text = "".join(output.get("text") or data["text/plain"]).strip("\n")
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n", pictures


# --- where things are ----


def version() -> str:
    """Which solar these pages are of: it stands below each."""
    return re.findall(r'^__version__ = "(.+)"$', (ROOT / "solar" / "__init__.py").read_text(), re.MULTILINE)[0]


def decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def listed() -> str:
    """The page of all decisions."""
    heads = [(path.name, path.read_text().partition("\n")[0].removeprefix("# ")) for path in decisions()]
    lines = [f"- [{head.replace('. ', ': ', 1)}]({name})" for name, head in heads]
    return "# Decisions\n\nWhat was chosen, why, and what would change our mind.\n\n" + "\n".join(lines) + "\n"


def source_of(place: str) -> str:
    """Where in the project a page of the site comes from."""
    return next((source for source, of in OUTSIDE.items() if of == place), f"docs/{place}")


def page_of(path: str) -> str:
    """Where in the site a page, or a folder with one, of the project is; empty if there is none."""
    if path in ("docs/decisions", f"docs/{DECISIONS}"):
        return DECISIONS
    for one in (path, posixpath.join(path, "README.md")):
        if one in OUTSIDE and (ROOT / one).is_file():
            return OUTSIDE[one]
    return path.removeprefix("docs/") if path.startswith("docs/") and path.endswith(".md") else ""


def meant(source: str, target: str) -> str | None:
    """The path in the project that a link of a page leads to; None if it leads elsewhere, or within the page."""
    if "://" in target or target.startswith(("#", "mailto:")):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target.partition("#")[0]))


def relative(place: str, of: str) -> str:
    return posixpath.relpath(place, posixpath.dirname(of) or ".")
