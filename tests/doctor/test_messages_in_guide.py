"""The troubleshooting page explains the doctor's checks, log messages, and errors that end a training or a game."""

import ast
import re
from typing import NamedTuple

import pytest

from trackmania_rl.doctor.findings import GUIDE, Check

LOGS = {"warning", "error", "exception", "critical", "_log_warning", "warn_once"}
ERRORS = {
    "CheckpointError",
    "KeepsFailingError",
    "DiskTooFullError",
    "GameConnectionError",
    "GameKeepsFailingError",
    "GameProtocolError",
    "GameTimeoutError",
    "PortInUseError",
    "RolloutTransportError",
}
OF_TRAINING = ("train.py", "evaluation.py", "loading.py")
"""Modules beside those of the rooms training and multiprocess."""
ERRORS_OF_TRAINING = ERRORS | {"PassingError", "UserError"}  # elsewhere its text says it all, which the page says once
ENOUGH_WORDS = 3  # to tell a message from others

NOT_EXPLAINED = {
    # Of the library: no training says it.
    "predict: a driver is greedy; call predict(observation, deterministic=True)",
    "act: the driver takes floats of the shape {} and {} image; make the environment with the configuration of its run",
    # They have no words of their own, but pass on an error's, or a check's.
    "{}",
    "{}: {}",
    "{} ({}, {})",
    "map {}: {}",
    "collector {}: {}",
    "demonstrations: {}",
    "offline: {}",
    "offline: race {} of {}: {}",
    # So do these, of the simulated game as a process of its own.
    "client: {}{}",
    "command {}: {}",
}


class Message(NamedTuple):
    place: str
    text: str  # {} stands for whatever is filled in


def test_every_check_has_an_entry_under_its_name_and_links_lead_to_entries(repository_root):
    guide = (repository_root / GUIDE).read_text(encoding="utf-8")
    sections = set(re.findall(r"^_`([a-z-]+)`\n {4}\S", guide, re.MULTILINE))
    assert sections == {check.value for check in Check}
    text = re.sub(r"``.*?``", "", guide, flags=re.DOTALL)
    links = re.findall(r"`([a-z-]+)`_\b|\b([a-z]+)_(?=[\s.,:;)])", text)
    assert links
    assert {either or other for either, other in links} <= sections


@pytest.fixture(scope="module")
def messages(repository_root):
    return list(_messages(repository_root))


def test_messages_and_errors_of_a_training_are_explained(messages, repository_root):
    guide = _plain((repository_root / GUIDE).read_text(encoding="utf-8"))
    said = [message for message in messages if message.text not in NOT_EXPLAINED]
    missing = [f"{place}: {words!r}" for place, text in said if (words := _fixed_words(text)) not in guide]
    assert not missing, f"{GUIDE} does not explain:\n" + "\n".join(missing)


def test_messages_without_words_of_their_own_are_listed(messages):
    assert {message.text for message in messages} >= NOT_EXPLAINED, "some are not said any more"
    wordless = [message for message in messages if len(_fixed_words(message.text).split()) < 2]
    assert [message for message in wordless if message.text not in NOT_EXPLAINED] == []


def _messages(root):
    for folder in ("trackmania_rl", "scripts"):
        for file in sorted((root / folder).rglob("*.py")):
            place = file.relative_to(root)
            is_of_training = {"multiprocess", "training"} & set(place.parts) or place.name in OF_TRAINING
            names = LOGS | (ERRORS_OF_TRAINING if is_of_training else ERRORS)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and node.args and _name(node.func) in names:
                    yield Message(f"{place.as_posix()}:{node.lineno}", _text(node.args[0]))


def _name(function):
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _text(node):
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"%(%|[\d.]*[a-z])", "{}", text)
        case ast.JoinedStr(values=values):
            return "".join(map(_text, values))
    return "{}"


def _fixed_words(text):
    # The page need not quote the advice that many messages end with, so the first sentence with enough words counts.
    of_sentences = [_longest_piece(sentence) for sentence in re.split(r"[.:;](?:\s|$)", text)]
    return next((words for words in of_sentences if len(words.split()) >= ENOUGH_WORDS), max(of_sentences, key=len))


def _longest_piece(sentence):
    pieces = [piece.strip(" '\"()") for piece in re.split(r"\{\}|,\s", sentence)]
    return max(pieces, key=lambda piece: (len(piece.split()), len(piece)))


def _plain(guide):
    return " ".join(guide.replace("`", "").split())
