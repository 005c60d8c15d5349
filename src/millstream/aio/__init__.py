"""The same nouns for coroutines: every name of `millstream`, awaited.

    import millstream.aio

    async with await millstream.aio.open("orders.db") as ms:
        orders = ms.log("orders")
        await orders.append({"id": 1, "total": 42})
        async for order in orders.read():
            print(order.offset, order.json())

What coroutines ask for in one turn of the event loop is committed together, with one sync.
Every method is awaited, or iterated with `async for`, except those that ask nothing of the store:
`ms.log`, `ms.room`, `ms.transaction`, `ms.begin`, and the steps of a transaction.
"""

from __future__ import annotations

from millstream.aio.cursor import Cursor
from millstream.aio.database import Millstream, open
from millstream.aio.gathered import GatheredJobs
from millstream.aio.interactive import InteractiveTransaction
from millstream.aio.job import Job
from millstream.aio.job_worker import JobWorker
from millstream.aio.jobs import Jobs
from millstream.aio.log import Log
from millstream.aio.log_consumer import LogConsumer
from millstream.aio.metadata import Metadata
from millstream.aio.partitioned import PartitionedLog
from millstream.aio.partitioned_cursor import PartitionedCursor
from millstream.aio.producer import (
    AppendHandle,
    LogProducer,
    PartitionedHandle,
    PartitionedProducer,
    PutHandle,
    QueueProducer,
)
from millstream.aio.queue import Queue
from millstream.aio.queue_consumer import QueueConsumer
from millstream.aio.room import Room
from millstream.aio.signature import JobGroup, Signature, gather
from millstream.aio.stage import Stage
from millstream.aio.task import Task
from millstream.aio.transaction import Transaction

__all__ = [
    "AppendHandle",
    "Cursor",
    "GatheredJobs",
    "JobGroup",
    "InteractiveTransaction",
    "Job",
    "JobWorker",
    "Jobs",
    "Log",
    "LogConsumer",
    "LogProducer",
    "Metadata",
    "Millstream",
    "PartitionedCursor",
    "PartitionedHandle",
    "PartitionedLog",
    "PartitionedProducer",
    "PutHandle",
    "Queue",
    "QueueConsumer",
    "QueueProducer",
    "Room",
    "Signature",
    "Stage",
    "Task",
    "Transaction",
    "gather",
    "open",
]
