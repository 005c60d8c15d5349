"""What an installation brings is what was tested: no release beyond it comes in unseen."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
INSTALLED = sorted({*PROJECT["dependencies"], *EXTRAS["client"], *EXTRAS["server"], *EXTRAS["s3"]})
PINNED = dict(
    line.partition("#")[0].strip().split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in line.partition("#")[0]
)


@pytest.mark.parametrize("text", INSTALLED)
def test_a_dependency_lets_in_what_is_tested_and_has_an_end(text: str) -> None:
    needed = Requirement(text)
    assert PINNED[needed.name] in needed.specifier
    assert any(one.operator in ("<", "<=", "==", "~=") for one in needed.specifier), text
    assert "99999" not in needed.specifier
