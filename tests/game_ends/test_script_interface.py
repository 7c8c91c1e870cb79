"""The plugin against TMInterface's declarations: all of them where their file is, and what the host does everywhere."""

import re
from collections import Counter

import pytest
from plugin_game import SCRIPT
from plugin_host import FUNCTION_TYPES, PluginHost
from script_interface import read_declarations


class NoGame:
    """A game that is asked nothing."""

    def __getattr__(self, name: str):
        if name not in FUNCTION_TYPES:
            raise AttributeError(name)
        return lambda *_: 0


@pytest.mark.parametrize("with_all_declarations", [False, True])
def test_the_plugin_compiles_with_the_functions_of_the_host(library, interface, with_all_declarations):
    """With all declarations a function of the host that is not declared exactly so fails as well."""
    if with_all_declarations and interface is None:
        pytest.skip("TMInterface's declarations are not here: their file is looked for among the shared data")
    PluginHost(library, SCRIPT, NoGame(), interface if with_all_declarations else None)
    if with_all_declarations:
        text = re.sub(r"//.*", "", interface.read_text())
        counts = Counter(one.kind for one in read_declarations(interface))
        assert sum(counts.values()) > 900
        assert counts["item"] == len(re.findall(r"^\s*\w+ = -?\d+,?\s*$", text, re.MULTILINE))
        assert counts["enum"] == len(re.findall(r"^\s*enum ", text, re.MULTILINE))
        n_types = sum(counts[kind] for kind in ("value", "ref", "single", "template"))
        assert n_types == len(re.findall(r"^\s*class ", text, re.MULTILINE))
