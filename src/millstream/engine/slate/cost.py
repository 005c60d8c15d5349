"""What a store in a bucket has asked of it, and about what a month of that costs: pure.

Prices are those of Amazon S3 Standard in us-east-1, without traffic to other regions: an estimate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

Kind = Literal["get", "put", "list", "delete"]
_KINDS: dict[str, Kind] = {
    "get": "get",
    "get_range": "get",
    "get_ranges": "get",
    "head": "get",
    "put": "put",
    "multipart_init": "put",
    "multipart_part": "put",
    "multipart_complete": "put",
    "list": "list",
    "list_with_offset": "list",
    "list_with_delimiter": "list",
    "delete": "delete",
}

USD_PER_REQUEST: dict[Kind, float] = {
    "get": 0.0000004,
    "put": 0.000005,
    "list": 0.000005,
    "delete": 0.0,
}
USD_PER_BYTE_AND_MONTH = 0.023 / 1024**3
MONTH_S = 30 * 24 * 3600.0

COUNTED_S_MIN = 10.0
"""Before so much time has passed, requests say nothing of a month."""


def requests_of(metrics: Iterable[Any]) -> dict[Kind, int]:
    """How many requests of each kind SlateDB has counted."""
    found: dict[Kind, int] = dict.fromkeys(USD_PER_REQUEST, 0)
    for metric in metrics:
        if metric.name == "slatedb.object_store.request_count":
            labels = {label.key: label.value for label in metric.labels}
            kind = _KINDS.get(labels.get("api", ""))
            if kind is not None:
                found[kind] += metric.value[0]
    return found


def month_usd(requests: dict[Kind, int], *, elapsed_s: float, stored_bytes: int) -> float:
    """What a month costs if it goes on as it has since the handle was opened."""
    usd = stored_bytes * USD_PER_BYTE_AND_MONTH
    if elapsed_s >= COUNTED_S_MIN:
        asked = sum(USD_PER_REQUEST[kind] * count for kind, count in requests.items())
        usd += asked * MONTH_S / elapsed_s
    return round(usd, 2)
