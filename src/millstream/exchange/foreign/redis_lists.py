"""Queues in lists of Redis: plain lists, RQ and Celery.

Messages are moved to a second list, and from there to our queue, so that workers of the source cannot
take them meanwhile. The second list has an id of its own: a message is the N-th one of this list, and
has the same id if the list is read again after a crash. Needs Redis 6.2.
"""

from __future__ import annotations

import secrets
import zlib
from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from millstream.errors import InvalidInput
from millstream.exchange.foreign.message import PICKLE, ForeignMessage, needed
from millstream.format.packing import JSON
from millstream.header import HeaderValue
from millstream.record import wall_ms_of

CELERY_PRIORITIES = (0, 3, 6, 9)
"""The steps of Celery's transport; 0 goes first."""


class RedisList:
    """A list whose values are the messages; RPUSH added the newest, or LPUSH with `newest_left`."""

    kind = "redis-list"

    def __init__(self, address: str, key: str, *, newest_left: bool = False) -> None:
        redis = needed("redis", self.kind)
        try:
            self._redis: Any = redis.Redis.from_url(address)
        except ValueError as error:
            raise InvalidInput(
                f"the source of --from {self.kind} is an address such as redis://localhost:6379/0: {error}"
            ) from error
        self._errors: Any = redis.RedisError
        self._keys = self._lists(key)
        self._key = key
        self._end = "RIGHT" if newest_left else "LEFT"
        self._moved = f"{key}:millstream"
        self._name = f"{key}:millstream-id"
        self._call(self._redis.ping)

    def _lists(self, key: str) -> list[str]:
        """Return the lists of a queue, in the order in which their messages are taken."""
        return [key]

    def take(self, count: int) -> Sequence[ForeignMessage]:
        """Return the messages of the second list; fill an empty list first."""
        moved = self._call(self._redis.lrange, self._moved, 0, -1)
        if not moved:
            moved = self._fill(count)
        name = (self._call(self._redis.get, self._name) or b"").decode()
        return [
            self._message(f"{self.kind}:{name}:{index}", data) for index, data in enumerate(moved)
        ]

    def _fill(self, count: int) -> list[bytes]:
        for key in self._keys:
            size = min(count, self._call(self._redis.llen, key))
            if size:
                step = self._redis.pipeline(transaction=True)
                step.set(self._name, secrets.token_hex(8))
                for _ in range(size):
                    step.lmove(key, self._moved, self._end, "RIGHT")
                self._call(step.execute)
                return list(self._call(self._redis.lrange, self._moved, 0, -1))
        return []

    def _message(self, id: str, data: bytes) -> ForeignMessage:
        return ForeignMessage(id=id, value=data)

    def remove(self, messages: Sequence[ForeignMessage]) -> None:
        """Delete the second list."""
        self._call(self._redis.delete, self._moved, self._name)

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()

    def _call(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._errors as error:
            raise InvalidInput(f"Redis: {error}") from error


class RqQueue(RedisList):
    """A queue of RQ: a list of ids, and a hash per job, whose data are compressed."""

    kind = "rq"

    def _lists(self, key: str) -> list[str]:
        return [f"rq:queue:{key}"]

    def _message(self, id: str, data: bytes) -> ForeignMessage:
        job = data.decode()
        fields = self._call(self._redis.hgetall, f"rq:job:{job}")
        value = fields.get(b"data", b"")
        try:
            value = zlib.decompress(value)
        except zlib.error:
            pass  # an old RQ stores data as they are
        headers: dict[str, HeaderValue] = {"rq-job": job, "content-type": _content_type(value)}
        for name in ("description", "origin", "created_at"):
            text = fields.get(name.encode(), b"").decode("utf-8", "replace")
            if text:
                headers[f"rq-{name.replace('_', '-')}"] = text
        return ForeignMessage(id=f"rq:{job}", value=value, headers=headers, receipt=job)

    def remove(self, messages: Sequence[ForeignMessage]) -> None:
        """Delete the jobs and the second list, in one transaction."""
        step = self._redis.pipeline(transaction=True)
        step.delete(*[f"rq:job:{message.receipt}" for message in messages])
        step.delete(self._moved, self._name)
        self._call(step.execute)


def _content_type(value: bytes) -> str:
    """Return the content type of a job: RQ writes pickles by default, and JSON on request."""
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return PICKLE
    return JSON


class CeleryQueue(RedisList):
    """A queue of Celery on Redis: JSON envelopes, in a list per priority; the newest is left."""

    kind = "celery-redis"

    def __init__(self, address: str, key: str) -> None:
        super().__init__(address, key, newest_left=True)

    def _lists(self, key: str) -> list[str]:
        return [key if step == 0 else f"{key}\x06\x16{step}" for step in CELERY_PRIORITIES]

    def _message(self, id: str, data: bytes) -> ForeignMessage:
        try:
            envelope = msgspec.json.decode(data)
            body, task = envelope["body"], envelope["headers"]
            properties = envelope.get("properties") or {}
            value = (
                b64decode(body) if properties.get("body_encoding") == "base64" else body.encode()
            )
            number = int(properties.get("priority") or 0)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"a message of Celery is no JSON envelope: {error}") from error
        headers: dict[str, HeaderValue] = {
            "content-type": envelope.get("content-type") or JSON,
            "celery-task": str(task.get("task") or ""),
            "celery-id": str(task.get("id") or ""),
        }
        due = task.get("eta")
        return ForeignMessage(
            id=f"celery:{task['id']}" if task.get("id") else id,
            value=value,
            headers=headers,
            priority=min(9, max(0, 9 - number)),
            due_ms=wall_ms_of(datetime.fromisoformat(due).astimezone()) if due else None,
        )
