"""The plugin against what TMInterface declares: all of it where its file is, and what the host can do everywhere."""

import re
from collections import Counter
from pathlib import Path

import pytest
from plugin_game import SCRIPT
from plugin_host import FUNCTION_TYPES, HostError, PluginHost
from script_interface import Declaration, InterfaceFileError, read_declarations

SMALL = """
// Global
namespace Net {
    class Socket { Socket(); ~Socket(); uint get_Available(); bool Write(const string&in data = "a, b"); }
}
namespace A::B { enum Kind { None = -1, Some = 0 } class Own { Kind Now; B::Kind Then; } const int MOST; }
class pair { ~pair(); pair(); pair(float x); float x; }
class list<T> { list(); ~list(); }
funcdef void Called(int number);
void log(const string&in str);
"""


class NoGame:
    """A game of which nothing is asked."""

    def __getattr__(self, name: str):
        if name not in FUNCTION_TYPES:
            raise AttributeError(name)
        return lambda *_: 0


@pytest.fixture
def declared(interface: Path | None) -> Path:
    if interface is None:
        pytest.skip("TMInterface's declarations are not here: their file is looked for among the shared data")
    return interface


@pytest.fixture
def open_script(library, tmp_path):
    """`open_script(text, file of declarations)` compiles a plugin; without a text the project's own."""

    def make(text: str | None, interface: Path | None) -> PluginHost:
        script = SCRIPT
        if text is not None:
            script = tmp_path / "plugin.as"
            script.write_text(text)
        return PluginHost(library, script, NoGame(), interface)

    return make


def test_declarations_are_read_with_their_kinds_and_scopes(tmp_path):
    (tmp_path / "small").write_text(SMALL)
    assert read_declarations(tmp_path / "small") == [
        Declaration("ref", "Net", "Socket"),
        Declaration("constructor", "Net::Socket", "Socket()"),
        Declaration("destructor", "Net::Socket", "~Socket()"),
        Declaration("method", "Net::Socket", "uint get_Available()"),
        Declaration("method", "Net::Socket", 'bool Write(const string&in data = "a, b")'),
        Declaration("enum", "A::B", "Kind"),
        Declaration("item", "A::B::Kind", "None = -1"),
        Declaration("item", "A::B::Kind", "Some = 0"),
        Declaration("single", "A::B", "Own"),
        Declaration("property", "A::B::Own", "Kind Now"),
        Declaration("property", "A::B::Own", "A::B::Kind Then"),
        Declaration("constant", "A::B", "const int MOST"),
        Declaration("value", "", "pair"),
        Declaration("destructor", "pair", "~pair()"),
        Declaration("constructor", "pair", "pair()"),
        Declaration("constructor", "pair", "pair(float x)"),
        Declaration("property", "pair", "float x"),
        Declaration("template", "", "list"),
        Declaration("constructor", "list", "list()"),
        Declaration("destructor", "list", "~list()"),
        Declaration("funcdef", "", "void Called(int number)"),
        Declaration("function", "", "void log(const string&in str)"),
    ]


@pytest.mark.parametrize("text", ["class pair { float x;", "struct pair { float x; }", "int most;", "}"])
def test_what_is_no_declaration_is_named(tmp_path, text):
    (tmp_path / "wrong").write_text(text)
    with pytest.raises(InterfaceFileError):
        read_declarations(tmp_path / "wrong")


def test_the_plugin_compiles_with_what_the_host_can_do(open_script):
    open_script(None, None)


def test_the_plugin_compiles_against_all_declarations(open_script, declared):
    """What the host itself can do is declared exactly so, or this fails as well."""
    open_script(None, declared)


def test_every_line_of_the_declarations_is_read(declared):
    text = re.sub(r"//.*", "", declared.read_text())
    counts = Counter(one.kind for one in read_declarations(declared))
    assert sum(counts.values()) > 900
    assert counts["item"] == len(re.findall(r"^\s*\w+ = -?\d+,?\s*$", text, re.MULTILINE))
    assert counts["enum"] == len(re.findall(r"^\s*enum ", text, re.MULTILINE))
    n_types = sum(counts[kind] for kind in ("value", "ref", "single", "template"))
    assert n_types == len(re.findall(r"^\s*class ", text, re.MULTILINE))
    of_no_line = ("item", "enum", "value", "ref", "single", "template")
    assert sum(n for kind, n in counts.items() if kind not in of_no_line) == text.count(";")


def test_only_types_that_are_counted_are_handed_on_by_handle(declared):
    """So the order of constructor and destructor does tell the kinds of types apart."""
    declarations = read_declarations(declared)
    copied = {one.text for one in declarations if one.kind == "value"}
    handles = {name for one in declarations for name in re.findall(r"(\w+)@", one.text)}
    assert len(handles) > 10
    assert not copied & handles


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
def test_a_declaration_that_is_not_what_the_host_does_is_named(open_script, declared, tmp_path, declaration, other):
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
        "const array<uint8> bytes; uint n = bytes.Length;",  # nobody knows whether that getter is const
    ],
)
def test_what_is_not_declared_does_not_compile(open_script, interface, statement):
    with pytest.raises(HostError, match="error"):
        open_script(f"void Main() {{ {statement} }}", interface)


def test_what_the_host_cannot_do_compiles_and_ends_the_script(open_script, declared):
    host = open_script("void Main() { GetSimulationManager().Horn(); }", declared)
    host.main()
    assert host.counters().script_exceptions == 1


def test_all_of_it_is_there_for_scripts(open_script, declared):
    """One thing of each kind that the plugin does not use."""
    open_script(
        """
        BFEvaluationResponse@ OnEvaluate(SimulationManager@ simManager, const BFEvaluationInfo&in info)
        {
            BFEvaluationResponse@ response = BFEvaluationResponse();
            response.Decision = BFEvaluationDecision::Accept;
            return response;
        }
        void Main()
        {
            RegisterBruteforceEvaluation("id", "title", OnEvaluate);
            TM::SceneVehicleCar::SimulationWheel@ wheel = GetSimulationManager().Wheels.FrontLeft;
            TM::PlugSurfaceMaterialId material = wheel.RTState.ContactMaterialId;
            dictionary values;
            values.Set("a", 1.5);
            vec3 position = GetSimulationManager().Dyna.CurrentState.Location.Position;
            float distance = Math::Distance(position, vec3(1, 2, 3)) + Math::PI;
            array<TM::GameCtnBlock@>@ blocks = GetCurrentChallenge().Blocks;
            UI::Begin("title", UI::WindowFlags::NoMove | UI::WindowFlags::NoResize);
            InputState inputs = GetSimulationManager().GetInputState();
        }
        """,
        declared,
    )
