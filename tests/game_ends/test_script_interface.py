"""The plugin against TMInterface's declarations: all of them where their file is, and what the host does everywhere."""

import re
from collections import Counter

import pytest
from plugin_game import SCRIPT
from plugin_host import FUNCTION_TYPES, HostError, PluginHost
from script_interface import read_declarations


class NoGame:
    """A game that is asked nothing."""

    def __getattr__(self, name: str):
        if name not in FUNCTION_TYPES:
            raise AttributeError(name)
        return lambda *_: 0


@pytest.fixture
def declared(interface):
    if interface is None:
        pytest.skip("TMInterface's declarations are not here: their file is looked for among the shared data")
    return interface


@pytest.fixture
def open_script(library, tmp_path):
    """`open_script(text, file of declarations)` compiles a plugin; without a text the project's own."""

    def make(text, interface):
        script = SCRIPT
        if text is not None:
            script = tmp_path / "plugin.as"
            script.write_text(text)
        return PluginHost(library, script, NoGame(), interface)

    return make


def test_the_plugin_compiles_with_the_functions_of_the_host(open_script):
    open_script(None, None)


def test_the_plugin_compiles_against_all_declarations(open_script, declared):
    """A function of the host that is not declared exactly so fails as well."""
    open_script(None, declared)
    text = re.sub(r"//.*", "", declared.read_text())
    counts = Counter(one.kind for one in read_declarations(declared))
    assert sum(counts.values()) > 900
    assert counts["item"] == len(re.findall(r"^\s*\w+ = -?\d+,?\s*$", text, re.MULTILINE))
    assert counts["enum"] == len(re.findall(r"^\s*enum ", text, re.MULTILINE))
    n_types = sum(counts[kind] for kind in ("value", "ref", "single", "template"))
    assert n_types == len(re.findall(r"^\s*class ", text, re.MULTILINE))


@pytest.mark.parametrize(
    ("declaration", "other"),
    [
        ("Socket@ Accept(uint timeoutMs =", "Socket@ Accept(int timeoutMs ="),
        ("CaptureScreenshot(vec2&inout size)", "CaptureScreenshot(const vec2&in size)"),
        ("bool resetCamera = true", "bool resetCamera = false"),
        ("ExecuteImmediately = 2", "ExecuteImmediately = 3"),
        ("bool RaceFinished;", "uint RaceFinished;"),
        ("int get_TickTime();", ""),
    ],
)
def test_a_declaration_that_differs_from_the_host_is_named(open_script, declared, tmp_path, declaration, other):
    text = declared.read_text()
    assert declaration in text
    (tmp_path / "other").write_text(text.replace(declaration, other))
    with pytest.raises(HostError, match=r"the host can do what is not declared:\n  \w+"):
        open_script(None, tmp_path / "other")


@pytest.mark.parametrize(
    "statement",
    [
        "Nothing();",
        'log("a", 0);',
        "GetSimulationManager().RaceTime = 1;",
        "uint8 port = GetSimulationManager().NoSuchThing;",
        "const array<uint8> bytes; uint n = bytes.Length;",  # it is not known whether that getter is const
    ],
)
def test_undeclared_statements_do_not_compile(open_script, interface, statement):
    with pytest.raises(HostError, match="error"):
        open_script(f"void Main() {{ {statement} }}", interface)


def test_a_declared_function_that_the_host_lacks_compiles_and_ends_the_script(open_script, declared):
    host = open_script("void Main() { GetSimulationManager().Horn(); }", declared)
    host.call("main")
    assert host.counters().script_exceptions == 1
