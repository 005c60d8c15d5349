"""Entries of the shared log and the cluster's row, byte for byte as docs/FORMAT.md shows them.

The document is the only place where the bytes are written down; here they are read from it. `??`
stands for a byte that is random.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millstream.cluster import entry as entries
from millstream.cluster.entry import (
    ChunkedBody,
    Differs,
    EpochBody,
    Position,
    SharedEntry,
    TableChange,
    encode,
)
from millstream.engine.commit import Commit
from millstream.errors import CorruptionError
from millstream.format import keys

FORMAT_MD = Path(__file__).parents[3] / "docs" / "FORMAT.md"
SECTION = "### The shared log of a cluster\n"
LINE = re.compile(r"(key|value|entry)?\s+((?:[0-9a-f?]{2})(?: [0-9a-f?]{2})*)(?:\s{2,}.*)?")


def shown(word: str) -> list[str]:
    """The bytes that follow a word, of each block that begins with it or has it."""
    _, _, text = FORMAT_MD.read_text(encoding="utf-8").partition(SECTION)
    text, _, _ = text.partition("\n### ")
    found: list[str] = []
    part = ""
    for block in re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            said = LINE.fullmatch(line)
            assert said, f"not a line of bytes: {line!r}"
            if said[1] == word:
                found.append("")
            part = said[1] or part
            if part == word:
                found[-1] += f"{said[2]} "
    return [one.strip() for one in found]


def example() -> list[bytes]:
    """The entries of the document; each has the hash of the one before."""
    commit = Commit([(keys.delta(0), b"v")], [b"\x01\x2b"], [(b"\x01\x10", b"\x01\x11")])
    tables = [TableChange(statement="DROP TABLE t")]
    said = [
        (entries.EPOCH, bytes(range(16)), 0, encode(EpochBody("a", "http://a:1", 0))),
        (entries.COMMIT, b"\1" * 16, 1, entries.pack(commit, tables, bytes_max=1_000)),
        (entries.BARRIER, b"\2" * 16, 2, b""),
        (entries.CHUNK, b"\3" * 16, 3, b"piece"),
        (entries.CHUNKED, b"\3" * 16, 3, encode(ChunkedBody(1, 5))),
    ]
    found: list[bytes] = []
    previous = bytes(entries.HASH_BYTES)
    for kind, name, passed_ms, body in said:
        entry = SharedEntry(kind, 1, name, previous, 1_000 + passed_ms, 2_000 + passed_ms, body)
        found.append(encode(entry))
        previous = entries.digest(found[-1])
    return [*found, encode(entries.closing(len(found), found[-1]))]


def matches(data: bytes, text: str) -> bool:
    cells = text.split()
    return len(cells) == len(data) and all(
        cell in ("??", f"{byte:02x}") for cell, byte in zip(cells, data, strict=True)
    )


def test_entries_have_the_bytes_of_the_document() -> None:
    found = example()
    text = shown("entry")
    assert len(text) == len(found)
    for data, cells in zip(found, text, strict=True):
        assert matches(data, cells), data.hex(" ")


def test_the_row_has_the_bytes_of_the_document() -> None:
    first = example()[0]
    key, value = entries.behind(Position(), first, entries.decode(1, first)).row()
    assert matches(key, shown("key")[0])
    assert matches(value, shown("value")[0]), value.hex(" ")


def test_what_the_document_shows_is_read_as_it_says() -> None:
    for number, text in enumerate(shown("entry")[:-1], start=1):
        assert entries.decode(number, bytes.fromhex(text)).kind == number
    position = entries.decode_position(bytes.fromhex(shown("value")[0]))
    assert (position.sequence, position.leader, position.closed) == (1, "a", False)


def test_the_position_behind_a_closing_entry_says_so() -> None:
    position = Position()
    for data in example():
        assert not position.closed
        position = entries.behind(position, data, entries.decode(0, data))
    assert position.closed


@pytest.mark.parametrize("kind", [0, 7, 200])
def test_an_entry_of_an_unknown_kind_is_not_guessed_at(kind: int) -> None:
    entry = SharedEntry(kind, 1, bytes(16), bytes(32), 0, 0)
    with pytest.raises(Differs, match=f"the kind {kind}, .* a newer version leads"):
        entries.decode(9, encode(entry))


def test_a_row_that_cannot_be_read_is_damaged() -> None:
    with pytest.raises(CorruptionError, match="the cluster's row"):
        entries.decode_position(b"\x93\x01")
