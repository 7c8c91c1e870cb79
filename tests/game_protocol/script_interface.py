"""Reads a list of TMInterface's script declarations, as editors of its plugins use them, for the host to register.

Such a file looks like AngelScript without bodies: namespaces with classes, enums, functions and constants. What it
leaves out is said where the host fills it in (host/registry.cpp).
"""

import re
from dataclasses import dataclass, replace

FILE_NAME = "tminterface_api.as.predefined"
"""Among the shared data that tests look for."""

TYPE_KINDS = ("enum", "value", "ref", "single", "template")


@dataclass(frozen=True)
class Declaration:
    """One thing to register."""

    kind: str  # see `_declared`, `_kind_of_type`, `_kind_of_member` and `_kind_of_global`
    scope: str  # the namespace, and the name of the type or enum that it belongs to
    text: str  # a name for enums and types, else the declaration as it stands in the file


class InterfaceFileError(Exception):
    """A file of declarations holds something that this reader does not know."""


def read_declarations(path):
    """Read a file of declarations, in its order, but with each type before its members."""
    text = re.sub(r"//.*", "", path.read_text())
    declarations = []
    for head, body in _statements(text):
        if body is not None and (match := re.fullmatch(r"namespace ([\w:]+)", head)):
            for inner_head, inner_body in _statements(body):
                declarations += _declared(inner_head, inner_body, match[1])
        else:
            declarations += _declared(head, body, "")
    types = {_inside(one.scope, one.text) for one in declarations if one.kind in TYPE_KINDS}
    return [replace(one, text=_qualified(one, types)) for one in declarations]


def as_text(declarations):
    """Return the input of the host: a line each, with tabs between the columns."""
    return "".join(f"{one.kind}\t{one.scope}\t{one.text}\n" for one in declarations)


def _qualified(declaration, types):
    """Write `A::B` in full where it means a type in a namespace around; the engine looks in the global one only."""
    around = declaration.scope.split("::")

    def in_full(match):
        names = ("::".join((*around[:depth], match[0])) for depth in range(len(around), -1, -1))
        return next((name for name in names if name in types), match[0])

    return re.sub(r"\b\w+(?:::\w+)+", in_full, declaration.text)


def _declared(head, body, namespace):
    if body is None:
        return [Declaration(_kind_of_global(head), namespace, head.removeprefix("funcdef "))]
    if match := re.fullmatch(r"enum (\w+)", head):
        scope = _inside(namespace, match[1])
        items = [item.strip() for item in body.split(",") if item.strip()]
        return [Declaration("enum", namespace, match[1]), *(Declaration("item", scope, item) for item in items)]
    if match := re.fullmatch(r"class (\w+)(<T>)?", head):
        name = match[1]
        scope = _inside(namespace, name)
        members = [Declaration(_kind_of_member(name, member), scope, member) for member, _ in _statements(body)]
        kind = "template" if match[2] else _kind_of_type([member.kind for member in members])
        return [Declaration(kind, namespace, name), *members]
    raise InterfaceFileError(f"neither class nor enum: {head!r}")


def _kind_of_type(members):
    """Tell a type that is copied from one that is counted: the file names the destructor of the former first.

    A type that can neither be made nor destroyed by a script is one of the game's own objects.
    """
    of_a_life = [kind for kind in members if kind in ("constructor", "destructor")]
    if not of_a_life:
        return "single"
    return "value" if of_a_life[0] == "destructor" else "ref"


def _kind_of_member(type_name, text):
    if text == f"~{type_name}()":
        return "destructor"
    if text.startswith(f"{type_name}("):
        return "constructor"
    return "method" if "(" in text else "property"


def _kind_of_global(text):
    if text.startswith("funcdef "):
        return "funcdef"
    if "(" in text:
        return "function"
    if text.startswith("const "):
        return "constant"
    raise InterfaceFileError(f"neither function nor constant: {text!r}")


def _inside(namespace, name):
    return f"{namespace}::{name}" if namespace else name


def _statements(text):
    """Split at semicolons and braces: (what stands before, what stands between the braces, if there are any)."""
    found = []
    at = 0
    while match := re.compile(r"\s*([^;{}]+?)\s*([;{])").match(text, at):
        at = match.end()
        if match[2] == ";":
            found.append((match[1], None))
            continue
        end = _closing_brace(text, at)
        found.append((match[1], text[at:end]))
        at = end + 1
    if rest := text[at:].strip():
        raise InterfaceFileError(f"no declaration begins at {rest[:60]!r}")
    return found


def _closing_brace(text, at):
    depth = 1
    for end in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return end
    raise InterfaceFileError(f"no end of {text[at : at + 60]!r}")
