"""One module knows which engines there are; everything else asks it, or the protocol."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import millstream
from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.open import open_engine
from millstream.engine.slate.options import SlateOptions
from millstream.engine.sqlite.engine import SqliteEngine
from millstream.engine.sqlite.options import SqliteOptions
from millstream.errors import CannotOpen, InvalidInput

SOURCES = Path(millstream.__file__).parent
ENGINES = {"SqliteEngine", "SlateEngine"}
ALLOWED = {
    "doctor/repair.py",
    "engine/open.py",
    "engine/sqlite/engine.py",
    "engine/sqlite/compact_file.py",
    "engine/sqlite/replace.py",
    "engine/slate/engine.py",
    "testing/engines.py",
}


def test_the_place_says_which_engine(tmp_path: Path) -> None:
    file, memory = open_engine(tmp_path / "a.db"), open_engine(":memory:", durability="relaxed")
    assert isinstance(file, SqliteEngine)
    assert isinstance(memory, MemoryEngine)
    assert memory.durability == "relaxed"
    file.close()


@pytest.mark.requires("s3")
def test_an_address_of_a_bucket_is_slatedbs(tmp_path: Path) -> None:
    address = f"file://{tmp_path}/bucket"
    with pytest.raises(InvalidInput, match="SlateOptions"):
        open_engine(address, options=SqliteOptions())
    with pytest.raises(InvalidInput, match="object storage"):
        open_engine(tmp_path / "a.db", options=SlateOptions())
    with pytest.raises(InvalidInput, match="durability"):
        open_engine(address, durability="relaxed")
    with pytest.raises(CannotOpen, match="there is no store"):
        open_engine(address, mode="r")
    with pytest.raises(CannotOpen, match="create=True"):
        open_engine(address, create=False)
    engine = open_engine(address, options=SlateOptions())
    assert engine.describe()["engine"] == "slatedb"
    engine.close()


def test_no_other_module_makes_an_engine_on_disk() -> None:
    found = set()
    for path in SOURCES.rglob("*.py"):
        tree = ast.parse(path.read_text())
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        if ENGINES & {call.id for call in calls if isinstance(call, ast.Name)}:
            found.add(str(path.relative_to(SOURCES)))
    assert found <= ALLOWED


def test_nobody_asks_an_engine_for_its_path() -> None:
    """What others need of the place is asked for by purpose: `place`, `folder`, `shortage`."""
    found = [
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if re.search(r"engine\.path|describe\(\)(\[|\.get\()\"path", path.read_text())
    ]
    assert not found
