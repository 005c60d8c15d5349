"""Message move tasks of this process, and how far each has come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

REMEMBERED_MAX = 10
"""Tasks of a source queue that are listed."""

RUNNING, COMPLETED, CANCELLING = "RUNNING", "COMPLETED", "CANCELLING"
CANCELLED, FAILED = "CANCELLED", "FAILED"


@dataclass(slots=True)
class MoveTask:
    """A task, and how far it has come."""

    handle: str
    source: str
    """The name of the source queue in the store."""
    source_arn: str
    destination_arn: str
    """Empty: each message goes back to the queue that it came from."""
    rate: int | None
    to_move: int
    started_ms: int
    moved: int = 0
    status: str = RUNNING
    reason: str = ""

    def entry(self) -> dict[str, Any]:
        """Return the task as a listing shows it."""
        entry: dict[str, Any] = {}
        if self.status == RUNNING:
            entry["TaskHandle"] = self.handle
        entry |= {"Status": self.status, "SourceArn": self.source_arn}
        if self.destination_arn:
            entry["DestinationArn"] = self.destination_arn
        if self.rate is not None:
            entry["MaxNumberOfMessagesPerSecond"] = self.rate
        entry["ApproximateNumberOfMessagesMoved"] = self.moved
        entry["ApproximateNumberOfMessagesToMove"] = self.to_move
        if self.reason:
            entry["FailureReason"] = self.reason
        return {**entry, "StartedTimestamp": self.started_ms}


@dataclass(slots=True)
class MoveTasks:
    """The tasks of this process, by the stored names of their source queues."""

    by_source: dict[str, list[MoveTask]] = field(default_factory=dict)
    running: set[asyncio.Task[None]] = field(default_factory=set)

    def add(self, task: MoveTask) -> None:
        """Remember a task; older tasks than the last few of its source are forgotten."""
        tasks = self.by_source.setdefault(task.source, [])
        tasks.insert(0, task)
        del tasks[REMEMBERED_MAX:]

    def active(self, source: str) -> MoveTask | None:
        """Return the task of a source that has not ended."""
        tasks = self.by_source.get(source, [])
        return next((task for task in tasks if task.status in (RUNNING, CANCELLING)), None)
