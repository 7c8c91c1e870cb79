"""The documentation's site as it was built: `.ci/run` names its folder by `TRACKMANIA_RL_SITE`."""

from __future__ import annotations

import html
import json
import os
import re
from pathlib import Path

import pytest

from trackmania_rl.settings.groups import FIELDS, groups

SITE = os.environ.get("TRACKMANIA_RL_SITE")
ERROR = re.compile(r'ERROR:|class="(?:[^"]* )?(?:contents|system-message|problematic)[ "]')
"""Text, or the class of an element, that the theme or docutils shows as an error."""


def built_title(text: str) -> str:
    """The first heading of a built page, without its link to itself."""
    [heading] = re.findall(r"<h1>(.*?)(?:<a class=\"headerlink\"|</h1>)", text, re.DOTALL)[:1]
    return html.unescape(re.sub(r"<[^>]+>", "", heading)).strip().replace("’", "'")


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
    hidden = re.compile(r"<(script|style)\b.*?</\1>", re.DOTALL)
    pages = {
        file.relative_to(site).as_posix(): hidden.sub("", file.read_text("utf-8")) for file in site.rglob("*.html")
    }
    assert not [name for name, text in pages.items() if ERROR.search(text)]

    reached, to_read = {"index.html"}, ["index.html"]
    while to_read:
        name = to_read.pop()
        links = re.findall(r'<a [^>]*href="([^"#?:]+\.html)', pages[name])
        linked = {os.path.relpath((site / name).parent / link, site) for link in links} & pages.keys() - reached
        to_read += linked
        reached |= linked
    sources = [*docs.glob("*.rst"), *docs.glob("tutorials/*.ipynb")]
    titles = {file.relative_to(docs).with_suffix("").as_posix(): source_title(file) for file in sources}
    shown = {name: built_title(pages[f"{name}.html"]) for name in titles if f"{name}.html" in reached}
    assert shown == titles


@pytest.mark.slow
@pytest.mark.skipif(SITE is None, reason="build the site (CONTRIBUTING.rst) and set TRACKMANIA_RL_SITE to its folder")
def test_each_setting_has_an_anchor_and_is_found_by_other_words() -> None:
    site = Path(SITE or "")
    index, settings = (site / "searchindex.js").read_text("utf-8"), (site / "settings.html").read_text("utf-8")
    [page] = set(re.findall(r'"learning rate":\[\[(\d+),"lr-schedule",true\]\]', index))  # true: above all other pages
    for name in FIELDS:
        anchor = name.replace("_", "-")
        assert f'id="{anchor}"' in settings, name
        assert f'[{page},"{anchor}",true]' in index, name
    assert settings.count("<h2>") == len(groups())
    assert "copybutton.js" in settings
