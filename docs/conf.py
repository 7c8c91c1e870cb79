"""How Sphinx builds the documentation's site: `python -m sphinx -W --keep-going docs build/site`."""

from __future__ import annotations

import sys
import typing
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.util.parsing import nested_parse_to_nodes

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "TrackMania trainer"
author = "the trackmania-rl contributors"
copyright = f"2026, {author}"
version = release = "0.1.0"

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "matplotlib.sphinxext.plot_directive",
    "myst_nb",
    "sphinx_copybutton",
]
root_doc = "index"
exclude_patterns = ["figures", "_templates"]
templates_path = ["_templates"]
default_role = "code"  # docstrings write `name` for code
nitpicky = False
suppress_warnings = ["ref.python"]  # a name that a package hands on has two places

html_theme = "furo"
html_title = "TrackMania trainer"
html_show_sourcelink = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs" / "scorer.js")

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_mock_imports = ["pywintypes", "win32api", "win32con", "win32gui", "win32process", "Xlib"]
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

plot_formats = [("svg", 90)]
plot_html_show_source_link = False
plot_html_show_formats = False
plot_working_directory = str(ROOT)

nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True


class SettingsTable(Directive):
    """`.. settings-table:: config.py`: every setting with its value there, unit, range and what it does."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Write the table as reStructuredText, from the same source as `train.py --list-settings`."""
        from docs_tables import settings_rst

        text = settings_rst(ROOT / "config_files" / self.arguments[0])
        return nested_parse_to_nodes(self.state, StringList(text.splitlines(), source="settings"))


def lead_to_pages(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Turn links to files, as they work beside the sources, into links to the site's pages.

    What is no page of the site (research notes, sources) stays as text.
    """
    here = (Path(app.srcdir) / docname).parent
    for reference in list(doctree.findall(nodes.reference)):
        target = urlsplit(reference.get("refuri", ""))
        if target.scheme or not target.path:
            continue
        file = (here / target.path).resolve()
        if file == ROOT / "README.rst":
            page: str | None = app.config.root_doc
        else:
            is_page = file.is_relative_to(app.srcdir)
            page = str(file.relative_to(app.srcdir).with_suffix("")) if is_page else None
        if page in app.env.found_docs:
            fragment = f"#{target.fragment}" if target.fragment else ""
            reference["refuri"] = app.builder.get_relative_uri(docname, page) + fragment
        elif file.suffix == ".rst":
            reference.replace_self(nodes.inline("", "", *reference.children))


def without_patterns(
    _: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """Leave out the signatures of settings, which are pages long: the settings' own page says what each one takes."""
    is_model = what == "class" and isinstance(obj, type) and issubclass(obj, BaseModel)
    return ("", returns) if is_model else None


def without_annotated(_: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool:
    """Leave out names of annotated types, whose patterns would be read as markup."""
    return skip or typing.get_origin(obj) is typing.Annotated


def without_types(_: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Keep napoleon from reading what stands before a colon as an attribute's type: it looks at the first line only."""
    if what in ("attribute", "data", "property"):
        lines.insert(0, "\\")  # an escaped line break, which is nothing


def setup(app: Sphinx) -> None:
    """Register what is above."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    app.add_directive("settings-table", SettingsTable)
    app.connect("doctree-resolved", lead_to_pages)
    app.connect("autodoc-process-signature", without_patterns)
    app.connect("autodoc-process-docstring", without_types, priority=400)  # before napoleon's
    app.connect("autodoc-skip-member", without_annotated)
