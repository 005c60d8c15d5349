"""Millstream: durable logs, work queues and live rooms in one system.

import millstream

with millstream.open("orders.db") as ms:
    orders = ms.log("orders")
    orders.append({"id": 1, "total": 42})
    for order in orders.read():
        print(order.offset, order.json())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.embedded.steps import Later
from millstream.engine.protocol import Durability
from millstream.engine.slate.options import SlateOptions
from millstream.engine.sqlite.options import SqliteOptions
from millstream.errors import MillstreamError
from millstream.header import Headers
from millstream.jobs.context import JobContext
from millstream.jobs.errors import JobCancelled, JobFailed
from millstream.jobs.job_progress import JobProgress
from millstream.jobs.reports import JobCancelling, JobFinished, JobStarted
from millstream.limits import Limits
from millstream.log.model.block import RecordBlock
from millstream.queue.model.backoff import Backoff
from millstream.queue.model.message import Fate, Message, PutResult, QueueInfo, Reject, Retry
from millstream.queue.model.message_change import MessageChange
from millstream.queue.model.spec import QueueSpec
from millstream.record import (
    CursorInfo,
    Item,
    LogInfo,
    PartitionOffset,
    Producer,
    Record,
    Retention,
    SqlResult,
    SqlRow,
)
from millstream.rooms.events import RoomEvent
from millstream.rooms.model import InstanceInfo, RoomInfo, RoomMessage
from millstream.rooms.settings import RoomSettings
from millstream.schema.history import SchemaVersion
from millstream.threads.cursor import Cursor
from millstream.threads.database import Millstream, open
from millstream.threads.gathered import GatheredJobs
from millstream.threads.interactive import InteractiveTransaction
from millstream.threads.job import Job
from millstream.threads.job_worker import JobWorker
from millstream.threads.jobs import Jobs
from millstream.threads.log import Log
from millstream.threads.log_consumer import LogConsumer
from millstream.threads.partitioned import PartitionedLog
from millstream.threads.partitioned_cursor import PartitionedCursor
from millstream.threads.producer import (
    AppendHandle,
    LogProducer,
    PartitionedHandle,
    PartitionedProducer,
    PutHandle,
    QueueProducer,
)
from millstream.threads.queue import Queue
from millstream.threads.queue_consumer import QueueConsumer
from millstream.threads.room import Room
from millstream.threads.signature import JobGroup, Signature, gather
from millstream.threads.stage import Stage
from millstream.threads.task import Task
from millstream.threads.transaction import Transaction
from millstream.threads.worker import Worker
from millstream.worker.handler import HandlerTransaction
from millstream.worker.stats import WorkerStats

if TYPE_CHECKING:
    from millstream import aio as aio

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`millstream.aio`, once it is asked for: programs of threads do not pay for it."""
    if name == "aio":
        from importlib import import_module

        return import_module("millstream.aio")
    raise AttributeError(f"module 'millstream' has no attribute {name!r}")


__all__ = [
    "AppendHandle",
    "Backoff",
    "RecordBlock",
    "Cursor",
    "CursorInfo",
    "Durability",
    "Fate",
    "HandlerTransaction",
    "Headers",
    "InstanceInfo",
    "GatheredJobs",
    "JobGroup",
    "InteractiveTransaction",
    "Item",
    "Job",
    "JobCancelled",
    "JobCancelling",
    "JobContext",
    "JobFailed",
    "JobFinished",
    "JobProgress",
    "JobStarted",
    "JobWorker",
    "Jobs",
    "Later",
    "Limits",
    "Log",
    "LogConsumer",
    "LogProducer",
    "LogInfo",
    "Message",
    "MessageChange",
    "Millstream",
    "MillstreamError",
    "PartitionedCursor",
    "PartitionedHandle",
    "PartitionedLog",
    "PartitionedProducer",
    "PartitionOffset",
    "Producer",
    "PutResult",
    "PutHandle",
    "Queue",
    "QueueConsumer",
    "QueueProducer",
    "QueueInfo",
    "QueueSpec",
    "Record",
    "Reject",
    "Retention",
    "Retry",
    "Room",
    "RoomEvent",
    "RoomInfo",
    "RoomMessage",
    "RoomSettings",
    "SchemaVersion",
    "SqlResult",
    "SqlRow",
    "SqliteOptions",
    "SlateOptions",
    "Signature",
    "Stage",
    "Task",
    "Transaction",
    "Worker",
    "WorkerStats",
    "gather",
    "open",
]
