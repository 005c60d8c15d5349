"""docs/PROTOCOL.md says what the socket does, byte for byte."""

from __future__ import annotations

import re
from pathlib import Path

import httpx

import millstream
from millstream.format.version import FORMAT
from millstream.log.commands import Append
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.wire import commands as wire
from tests.unit.server.talking import single, talking

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "PROTOCOL.md").read_text(encoding="utf-8")


def test_the_example_is_what_travels(tmp_path: Path) -> None:
    (example,) = re.findall(r"```\n(→.*?)```", TEXT, re.DOTALL)
    lines = example.splitlines()
    asked, told = "", ""
    for line in lines:
        shown = re.sub(r"[^0-9a-f]", "", re.split(r"\s{3,}(?=\S)", line[2:].strip())[0])
        if line.startswith("←") or told:
            told += shown
        else:
            asked += shown
    append = Append("a", single(b"hi"))
    assert bytes.fromhex(asked) == wire.encode_requests([(1, append)])
    with running(tmp_path / "store.db", Settings(port=0)) as server, talking(server) as talk:
        talk.socket.send(bytes.fromhex(asked))
        assert talk.socket.recv() == bytes.fromhex(told)


def test_every_key_of_the_greeting_is_explained() -> None:
    for name in wire.Hello.__struct_fields__:
        assert f"| `{name}` |" in TEXT


def test_the_greeting_and_rest_tell_version_and_abilities(tmp_path: Path) -> None:
    with running(tmp_path / "store.db", Settings(port=0)) as server, talking(server) as talk:
        told = httpx.get(f"{server.url}/version").json()
        assert (talk.hello.release, list(talk.hello.abilities)) == (
            told["version"],
            told["abilities"],
        )
    assert told["version"] == millstream.__version__
    assert (told["protocol"], told["format"]) == (wire.VERSION, FORMAT)
    for ability in wire.ABILITIES:
        assert f"| `{ability}` |" in TEXT
