"""paper/: what it cites is listed, and its figures are those of the project's pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAPER, WORKS = ROOT / "paper" / "paper.md", ROOT / "paper" / "paper.bib"
SOURCE = re.compile(r"<!-- of (\S+): (.+?) -->")
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")


def test_every_work_that_is_cited_is_listed_and_every_one_that_is_listed_is_cited() -> None:
    cited = set(re.findall(r"@(\w+)", PAPER.read_text().partition("\n# Summary\n")[2]))
    works = re.findall(r"^@\w+\{(\w+),$(.*?)^\}$", WORKS.read_text(), re.MULTILINE | re.DOTALL)
    assert len(works) > 10 and sorted(name for name, _ in works) == sorted(cited)
    for name, fields in works:
        assert {"author", "title"} <= set(re.findall(r"^  (\w+) = ", fields, re.MULTILINE)), name
        assert "howpublished" in fields or "year" in fields, name


def test_a_figure_outside_the_made_table_names_the_page_that_has_it() -> None:
    text = PAPER.read_text()
    quoted = text.partition("<!-- end of brief -->")[2].partition("\n# Limits\n")[0]
    paragraphs = [one for one in quoted.split("\n\n") if one.strip()]
    assert len(paragraphs) >= 2
    for paragraph in paragraphs:
        sources = SOURCE.findall(paragraph)
        assert sources, paragraph
        for page, words in sources:
            lines = " ".join((ROOT / page).read_text().split())
            assert re.search(".{0,120}?".join(map(re.escape, re.split(" ?… ?", words))), lines), f"{page}: {words}"
        told = {number for _, words in sources for number in NUMBER.findall(words)}
        assert set(NUMBER.findall(SOURCE.sub("", paragraph))) <= told, paragraph
    before, _, after = text.partition("\n# Evaluation\n")
    prose = before.partition("\n# Summary\n")[2] + after.partition("\n# Limits\n")[2]
    assert [one for one in NUMBER.findall(re.sub(r"\$.*?\$|1 KB", "", prose)) if "." in one] == []


def test_it_is_as_long_as_such_papers_are_and_names_nobody_who_helped() -> None:
    text = PAPER.read_text().partition("\n# Summary\n")[2]
    prose = re.sub(r"<!--.*?-->|^\|.*$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert 700 < len(prose.split()) < 1200
    heads = re.findall(r"^# (.+)$", text, re.MULTILINE)
    assert heads == ["Statement of need", "State of the field", "Design", "Exactness", "Evaluation", "Limits",
                     "Acknowledgements", "References"]  # fmt: skip
