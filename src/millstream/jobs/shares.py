"""Shares: how a worker divides its concurrency among queues; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millstream.errors import InvalidInput
from millstream.log.model.names import check_name
from millstream.worker.options import CONCURRENCY_MAX

QueueShares = Iterable[str] | Mapping[str, int]
"""Names of queues, or the share of each queue in the concurrency of a worker."""


def shares_of(
    shares: QueueShares | None, served: Mapping[str, int], concurrency: int
) -> dict[str, int]:
    """Return how many jobs of each queue run at a time: by weight, and at least 1 per queue.

    `served` has the number of tasks in each queue: without shares, these numbers are the weights.
    """
    if not 1 <= concurrency <= CONCURRENCY_MAX:
        raise InvalidInput(
            f"concurrency must be from 1 to {CONCURRENCY_MAX:,} jobs, got {concurrency:,}"
        )
    weights: dict[str, Any]
    if shares is None:
        weights = dict(served)
    elif isinstance(shares, Mapping):
        weights = dict(shares)
    else:
        weights = dict.fromkeys([shares] if isinstance(shares, str) else shares, 1)
    if not weights:
        raise InvalidInput("a worker needs a queue: no task is defined, and no queue is named")
    for queue, weight in weights.items():
        check_name(queue, "queue")
        if isinstance(weight, bool) or not isinstance(weight, int) or weight < 1:
            raise InvalidInput(f"the share of queue {queue!r} is at least 1, not {weight!r:.100}")
    total = sum(weights.values())
    parts = {queue: max(1, concurrency * weight // total) for queue, weight in weights.items()}
    left = max(0, concurrency - sum(parts.values()))
    for queue in sorted(weights, key=lambda queue: -(concurrency * weights[queue] % total))[:left]:
        parts[queue] += 1
    return parts
