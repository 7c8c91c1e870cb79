"""The troubleshooting page has a section for each check of the doctor."""

import re

from trackmania_rl.doctor.findings import GUIDE, Check


def test_every_check_has_a_section_under_its_name_and_links_lead_to_sections(repository_root):
    guide = (repository_root / GUIDE).read_text(encoding="utf-8")
    sections = set(re.findall(r"^\.\. _([a-z-]+):\n\n\1\n~+\n\n\S", guide, re.MULTILINE))
    assert sections == {check.value for check in Check}
    text = re.sub(r"``.*?``", "", guide, flags=re.DOTALL)
    links = re.findall(r"`([a-z-]+)`_\b|\b([a-z]+)_(?=[\s.,:;)])", text)
    assert links
    assert {either or other for either, other in links} <= sections
