"""Answers of JetStream: the state of a stream, a message, or a refusal.

This module decodes answers; `jetstream` draws the conclusions.
"""

from __future__ import annotations

import msgspec

from millstream.cluster.nats.connection import NatsMessage
from millstream.cluster.nats.stream_leader import StreamServers
from millstream.cluster.shared_log import Held, Unreachable

WRONG_SEQUENCE = (10071, 10164)
NO_STREAM = 10059
NO_MESSAGE = 10037
DONE = {"STREAM.CREATE": 10058, "STREAM.DELETE": NO_STREAM, "STREAM.MSG.GET": NO_MESSAGE}
"""Errors that answer the request: the stream exists already, does not exist, or has no such
message."""
UNFIT = {
    10039: "JetStream is off for this user's account: enable it there",
    10076: "JetStream is off: add a `jetstream` block to the servers' configuration",
    10074: "it is one server by itself, and keeps one copy: cluster three, or say --replicas 1",
    10028: "the account's JetStream limits leave no room: allow 256 MiB for each replica",
    10047: "the servers have too little JetStream storage: allow 256 MiB for each replica",
}
"""Errors that waiting does not cure, and the remedy."""
NO_PEERS = 10005
"""Too few servers have JetStream; another server may be just starting."""


class StreamState(msgspec.Struct, frozen=True):
    """The extent and size of a stream."""

    messages: int
    bytes: int
    first_seq: int
    last_seq: int

    @property
    def held(self) -> Held:
        """Return the sequences; in a stream that was never written, they begin at 1."""
        return Held(max(self.first_seq, 1), self.last_seq)


class Refusal(msgspec.Struct, frozen=True):
    """Why a request was refused."""

    code: int
    description: str = ""
    err_code: int = 0


class StreamConfig(msgspec.Struct, frozen=True):
    """The configuration of a stream, as far as a node needs it."""

    metadata: dict[str, str] = {}


class StreamMessage(msgspec.Struct, frozen=True):
    """A message of the stream: an entry of the log."""

    data: bytes = b""


class StreamAnswer(msgspec.Struct, frozen=True):
    """An answer of JetStream to any request."""

    error: Refusal | None = None
    seq: int = 0
    state: StreamState | None = None
    cluster: StreamServers | None = None
    config: StreamConfig = StreamConfig()
    message: StreamMessage | None = None

    @property
    def is_missing(self) -> bool:
        """Whether the stream does not exist."""
        return self.error is not None and self.error.err_code == NO_STREAM


def decode_answer(heard: NatsMessage) -> StreamAnswer:
    """Decode an answer. Raises `Unreachable` for bytes that JetStream did not send."""
    try:
        return msgspec.json.decode(heard.data, type=StreamAnswer)
    except msgspec.DecodeError as error:
        raise Unreachable(f"an answer that is not JetStream's: {error}") from error
