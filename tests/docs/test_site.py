"""The documentation's site as it was built: `.ci/run` names its folder by `TRACKMANIA_RL_SITE`."""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

SITE = os.environ.get("TRACKMANIA_RL_SITE")
ERROR_BOXES = {"contents", "system-message", "problematic"}
"""Classes of elements that the theme or docutils shows as an error."""
NO_PAGES = {"README"}
"""As `exclude_patterns` of docs/conf.py."""


class Page(HTMLParser):
    """A page's text, its first heading, the files it links to, and the classes of its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = self.title = ""
        self.links: list[str] = []
        self.classes: set[str] = set()
        self._is_heading = self._has_heading = False
        self._hidden = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note classes, links, and where the heading begins."""
        self.classes |= {*(dict(attributes).get("class") or "").split()}
        if tag == "a":
            self.links.append(unquote(urlsplit(dict(attributes).get("href") or "").path))
        self._is_heading |= tag == "h1" and not self.title
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        """Note where the heading ends."""
        self._is_heading &= tag != "h1"
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        """Keep what is shown."""
        if not self._hidden:
            self.text += data
            self.title += data if self._is_heading else ""


def source_title(file: Path) -> str:
    """The title of a page's source."""
    if file.suffix == ".ipynb":
        cells = json.loads(file.read_text("utf-8"))["cells"]
        heading = next(line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"])
        return heading.removeprefix("# ").strip()
    lines = file.read_text("utf-8").splitlines()
    under = next(number for number, line in enumerate(lines) if re.fullmatch("=+", line))
    return lines[under - 1].replace("`", "").strip()


@pytest.mark.slow
@pytest.mark.skipif(SITE is None, reason="build the site (CONTRIBUTING.rst) and set TRACKMANIA_RL_SITE to its folder")
def test_every_page_is_reached_under_its_own_title_and_shows_no_error(repository_root: Path) -> None:
    site, docs = Path(SITE or ""), repository_root / "docs"
    pages = {file.relative_to(site).as_posix(): Page(file.read_text("utf-8")) for file in site.rglob("*.html")}
    assert not [name for name, page in pages.items() if "ERROR:" in page.text or page.classes & ERROR_BOXES]

    reached, to_read = {"index.html"}, ["index.html"]
    while to_read:
        name = to_read.pop()
        folder = (site / name).parent
        linked = {os.path.relpath(folder / link, site) for link in pages[name].links if link.endswith(".html")}
        to_read += linked & pages.keys() - reached
        reached |= linked & pages.keys()
    sources = [*docs.glob("*.rst"), *docs.glob("tutorials/*.ipynb")]
    titles = {file.relative_to(docs).with_suffix("").as_posix(): source_title(file) for file in sources}
    shown = {
        name: pages[f"{name}.html"].title.rstrip("¶#").replace("’", "'") for name in titles if f"{name}.html" in reached
    }
    assert shown == {name: title for name, title in titles.items() if name not in NO_PAGES}
