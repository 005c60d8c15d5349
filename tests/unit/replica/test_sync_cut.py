"""A sync that is cut off, anywhere, and done again. Whatever happened:

- no copy ever holds a record that its origin does not have at that offset;
- the next sync goes on where the last one ended, and both sides are the same then.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.errors import MillstreamError
from millstream.replica.sync import shipment as shipping
from millstream.server.serving import running
from millstream.server.settings import Settings
from tests.unit.remote.proxy import proxied
from tests.unit.replica.copies import Cut, records, seen, through

Make = Callable[[], Millstream]


def apart(make: Make) -> tuple[Millstream, Millstream]:
    """Two stores that differ in every way that a sync mends."""
    a, b = make(), make()
    a.log("both").append_many([b"%d" % n for n in range(20)])
    a.log("taken").append_many([b"1", b"2"])
    b.sync(a)
    for n in range(12):
        a.log("both").append_many([b"block %d" % n] * 10)
    a.log("both").metadata["k"] = 1
    b.log("both").metadata["l"] = 2
    a.log("both").truncate(before=7)
    b.log("taken").take_over()
    b.log("taken").append_many([b"b3"] * 10)
    a.log("taken").append_many([b"a3", b"a4"])
    b.log("new").append_many([b"new"] * 30)
    return a, b


def logs_of(ms: Millstream) -> dict[str, object]:
    return {name: found for name, found in seen(ms).items() if "~fork-" not in name}


def asked_in_all(make: Make, side: str) -> int:
    a, b = apart(make)
    own, line = through(a)
    peer, other = through(b)
    own.sync(peer)
    return len((line if side == "own" else other).asked)


@pytest.mark.parametrize("side", ["own", "peer"])
@pytest.mark.parametrize("after", [False, True], ids=["question lost", "answer lost"])
def test_a_sync_cut_at_any_step_goes_on(
    make: Make, monkeypatch: pytest.MonkeyPatch, side: str, after: bool
) -> None:
    monkeypatch.setattr(shipping, "PARCEL_BYTES", 100)
    total = asked_in_all(make, side)
    assert total > 20
    for cut_at in range(total):
        a, b = apart(make)
        (own, line), (peer, other) = through(a), through(b)
        broken = line if side == "own" else other
        broken.cut_at, broken.cut_after = cut_at, after
        with pytest.raises(Cut):
            own.sync(peer)
        check_prefixes(a, b)
        broken.cut_at = None
        own.sync(peer)
        assert logs_of(a) == logs_of(b)
        forks = [name for name in seen(a) if "~fork-" in name]
        assert [records(a, name)[-1][1] for name in forks] == [b"a4"]
        assert own.sync(peer).logs == []


def check_prefixes(a: Millstream, b: Millstream) -> None:
    """Of each log, what both hold is the same, unless it was written by two."""
    for name in ("both", "new"):
        mine, theirs = ({r[0]: r for r in records(ms, name)} for ms in (a, b))
        for offset in mine.keys() & theirs.keys():
            assert mine[offset] == theirs[offset]


@pytest.mark.parametrize("direction", ["push", "pull"])
def test_a_connection_cut_after_any_number_of_bytes_is_made_anew_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    monkeypatch.setattr(shipping, "PARCEL_BYTES", 4_000)
    budgets = [700 + 1_511 * n for n in range(12)]
    with (
        running(tmp_path / "server.db", Settings(port=0, stop_s=1.0)) as server,
        millstream.open(tmp_path / "client.db") as own,
        proxied(server.port, budgets) as proxy,
        millstream.open(server.url) as direct,
    ):
        giver = own if direction == "push" else direct
        for n in range(40):
            giver.log("x").append_many([b"%d" % n * 20] * 25)
        tries = 0
        while tries < 100:
            tries += 1
            try:
                own.sync(proxy.url, direction=direction)  # type: ignore[arg-type]
                break
            except MillstreamError:
                check_prefix(records(own, "x"), records(direct, "x"))
        assert records(own, "x") == records(direct, "x")
        assert len(records(own, "x")) == 1_000
        assert proxy.connections > 5


def check_prefix(one: list[object], other: list[object]) -> None:
    shorter = min(len(one), len(other))
    assert one[:shorter] == other[:shorter]
