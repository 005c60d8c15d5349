"""The page of the API: every public name is on it, as its source says it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import millstream
from millstream import aio, errors, testing
from tools import api_page
from tools.api_sources import Sources
from tools.generate import ROOT


@pytest.fixture(scope="module")
def page() -> str:
    return api_page.page_of(ROOT)


def test_every_public_name_has_a_section(page: str) -> None:
    headings = {line.lstrip("# ") for line in page.splitlines() if line.startswith("#")}
    names = {*millstream.__all__, *testing.__all__} - api_page.ELSEWHERE
    names |= {f"aio.{name}" for name in aio.__all__}
    assert names <= headings, f"without a section: {sorted(names - headings)}"


def test_every_public_method_of_a_noun_is_there(page: str) -> None:
    for noun in (millstream.Millstream, millstream.Log, millstream.Queue, millstream.Room):
        for name, member in vars(noun).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                assert f"#### {noun.__name__}: {name}\n" in page


def test_every_error_is_there(page: str) -> None:
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, errors.MillstreamError):
            assert f"- **`{name}`**" in page


def test_no_line_is_wider_than_a_document_may_be(page: str) -> None:
    assert [line for line in page.splitlines() if len(line) > api_page.COLUMNS] == []


SAMPLE = '''\
"""A package."""

from millstream.things import Base


class Thing(Base):
    """A thing; see `Other`."""

    size: int = 3
    """How large."""
    _hidden: int = 0

    @property
    def half(self) -> float:
        """Half of it."""
        return self.size / 2

    @overload
    def get(self) -> int: ...
    @overload
    def get(self, n: int) -> str: ...
    def get(self, n: int | None = None) -> int | str:
        """Get it."""

    def put(
        self,
        value: str,  # any text
        *,
        often: bool = False,
    ) -> int:
        """Put it."""
        return 1


__all__ = ["Thing"]
'''
BASE = '''\
"""Things."""


class Base:
    """What things share."""

    def put(self) -> None:
        """Be replaced."""

    async def take(self) -> bytes:
        """Take it."""
'''


@pytest.fixture
def sample(tmp_path: Path) -> Sources:
    package = tmp_path / "src/millstream"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SAMPLE)
    (package / "things.py").write_text(BASE)
    return Sources(tmp_path)


def test_members_are_read_from_the_text_and_inherited(sample: Sources) -> None:
    members = sample.members(sample.find("", "Thing"))
    assert members.facts == {
        "size": ("size: int = 3", "How large."),
        "half": ("half: float", "Half of it."),
    }
    assert list(members.methods) == ["get", "put", "take"]
    signatures, docstring = members.methods["get"]
    assert docstring == "Get it."
    assert signatures == [
        "@overload\ndef get(self) -> int",
        "@overload\ndef get(self, n: int) -> str",
    ]
    assert members.methods["put"][0] == [
        "def put(\n    self,\n    value: str,  # any text\n    *,\n    often: bool = False,\n) -> int"
    ]
    assert members.methods["take"][0] == ["async def take(self) -> bytes"]


def test_names_of_classes_lead_to_their_sections() -> None:
    assert api_page.link("see `Log` and `x`", {"Log"}) == "see [`Log`](#log) and `x`"


def test_code_inside_a_docstring_stays_code() -> None:
    lines = list(api_page.prose("Run it.\n\nwith a as b:\n    run(b)", ()))
    assert lines == ["Run it.", "", "```text\nwith a as b:\n    run(b)\n```", ""]
