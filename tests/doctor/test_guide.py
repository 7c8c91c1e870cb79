"""The troubleshooting page has a section for whatever the doctor and the launchers say."""

import re
from pathlib import Path

from trackmania_rl.doctor.findings import GUIDE, Check


def _guide(repository_root: Path) -> str:
    return (repository_root / GUIDE).read_text(encoding="utf-8")


def test_every_check_has_a_section_under_its_name(repository_root: Path) -> None:
    sections = set(re.findall(r"^\.\. _([a-z-]+):\n\n\1\n~+\n\n\S", _guide(repository_root), re.MULTILINE))
    assert sections == {check.value for check in Check}


def test_links_within_the_guide_lead_somewhere(repository_root: Path) -> None:
    text = re.sub(r"``.*?``", "", _guide(repository_root), flags=re.DOTALL)
    links = re.findall(r"`([a-z-]+)`_\b|\b([a-z]+)_(?=[\s.,:;)])", text)
    assert links
    assert {either or other for either, other in links} <= {check.value for check in Check}


def test_what_the_launchers_say_is_explained(repository_root: Path) -> None:
    guide = " ".join(_guide(repository_root).split())
    folder = repository_root / "trackmania_rl" / "tmi_interaction" / "launchers"
    said = "\n".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in ("tmnf", "game_records"))
    messages = (
        "does not listen at port",
        "appeared within",
        "ended with exit code",
        "the game cannot be started by",
        "several games have begun since the one for port",
        "has been starting a game for",
        "ended while starting up",
        "that an earlier run left behind",
    )
    for message in messages:
        assert message in said, f"no launcher says {message!r} any more"
        assert message in guide, f"{message!r} is not explained"
