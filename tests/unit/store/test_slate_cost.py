"""What a month costs, by what was asked: a sum that can be done by hand."""

from __future__ import annotations

from types import SimpleNamespace

from millstream.engine.slate.engine import MONTH_S, Kind, month_usd, requests_of


def counted(api: str, number: int, name: str = "slatedb.object_store.request_count") -> object:
    label = SimpleNamespace(key="api", value=api)
    return SimpleNamespace(name=name, labels=[label], value=(number,))


def test_requests_are_counted_by_kind() -> None:
    metrics = [
        counted("get", 3),
        counted("get_range", 4),
        counted("put", 5),
        counted("multipart_part", 6),
        counted("list", 7),
        counted("delete", 8),
        counted("get", 100, name="slatedb.object_store.error_count"),
        counted("something new", 9),
    ]
    assert requests_of(metrics) == {"get": 7, "put": 11, "list": 7, "delete": 8}


def test_a_month_goes_on_as_it_began() -> None:
    asked: dict[Kind, int] = {"get": 0, "put": 1_000, "list": 0, "delete": 0}
    assert month_usd(asked, elapsed_s=MONTH_S / 1_000, stored_bytes=0) == 5.0
    assert month_usd(asked, elapsed_s=1.0, stored_bytes=0) == 0.0
    assert month_usd({}, elapsed_s=0.0, stored_bytes=1024**4) == 23.55
