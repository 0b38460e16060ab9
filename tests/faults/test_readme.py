"""What the README says is proved is proved: the tests it names exist."""

from __future__ import annotations

import re
from pathlib import Path

_HERE = Path(__file__).parent
_TESTS = _HERE.parent
_CITATION = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def test_every_test_that_the_readme_names_exists() -> None:
    cited = _CITATION.findall((_HERE / "README.md").read_text(encoding="utf-8"))
    assert cited
    missing = [
        f"{path}::{name}"
        for path, name in cited
        if not re.search(rf"^\s*(async )?def {name}\(", (_TESTS / path).read_text(), re.MULTILINE)
    ]
    assert missing == []
