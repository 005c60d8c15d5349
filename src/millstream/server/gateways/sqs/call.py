"""A call: one request of SQS with its sender, its region and account, and the address it came to."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from millstream.command import Command
from millstream.errors import NotFound
from millstream.server.gateways.sqs.catalog import Catalog, KnownQueue
from millstream.server.gateways.sqs.client import SqsClient
from millstream.server.gateways.sqs.errors import missing
from millstream.server.gateways.sqs.names import (
    HomePlace,
    QueueName,
    is_queue_name,
    queue_of_path,
    queue_of_url,
)

T = TypeVar("T")


class SqsCall(Struct, frozen=True):
    """One request; the actions get it."""

    client: SqsClient
    catalog: Catalog
    region: str
    account: str
    base: str
    """The server's address as the client wrote it, without a slash at the end."""
    path: str
    """The path of the request: a queue's address, or `/`."""
    request_id: str
    trace: str = ""
    """The trace of X-Ray that the request belongs to. Messages of the request store this trace."""

    @property
    def home(self) -> HomePlace:
        """The region and the account whose queues have plain names."""
        return self.catalog.home

    async def execute(self, command: Command[T]) -> T:
        """Return the answer of a command."""
        try:
            return await self.client.execute(command)
        except NotFound:
            self.catalog.forget_all()  # a queue was deleted by other means than SQS
            raise

    def now_ms(self) -> int:
        """Return the wall time."""
        return self.client.core.store.clock.wall_ms()

    def named(self, name: str) -> QueueName:
        """Return the queue of a name in the region and account of the request."""
        return QueueName(self.region, self.account, name)

    def url(self, name: QueueName) -> str:
        """Return the address of a queue on this server."""
        return name.url(self.base)

    async def queue(self, url: str | None) -> KnownQueue:
        """Return the queue of a request: by its parameter, or by the path of the request."""
        if not url and self.path in ("", "/"):
            raise missing("QueueUrl")
        if url and is_queue_name(url):  # AWS takes a plain name as well
            return await self.catalog.need(self.named(url))
        if url:
            return await self.catalog.need(queue_of_url(url, self.region))
        return await self.catalog.need(queue_of_path(self.path, self.region))
