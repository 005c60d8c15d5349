"""The wire: commands, answers and errors as bytes, between a client and a server.

A frame is a MessagePack array of requests, or of answers, so that many small ones travel together.

    request   [id, command]        a command is a map with its name under "type"
    answer    [id, 0, result]      the command was carried out
              [id, 1, error]       an error is [name, message, data]

The client chooses the ids; answers may come in any order. Records to append travel as stored
blocks: the server checks the blocks without taking them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar, Union, get_args

import msgspec
from msgspec import Raw, Struct

from millstream import command as base
from millstream import errors
from millstream.command import Command
from millstream.embedded.rules import COMMANDS
from millstream.errors import InvalidInput, MillstreamError, told_elsewhere
from millstream.limits import Limits
from millstream.wire.abilities import abilities_of

T = TypeVar("T")

SUBPROTOCOL = "millstream.v1"
VERSION = 1

OFFERED: tuple[type[Command[Any]], ...] = tuple(
    kind for kind in COMMANDS if kind.traits.needs != "internal"
)
"""The commands that a client may send to a server."""

STEPS: tuple[type[Command[Any]], ...] = tuple(kind for kind in OFFERED if kind.traits.is_step)
"""The commands that may be steps of a transaction."""

ABILITIES = abilities_of(OFFERED)
"""The abilities of a server of this version."""


class _Transact(Struct, frozen=True, tag="Transact"):
    """`command.Transact`, with steps of known types."""

    steps: list[Union[STEPS]]  # type: ignore[valid-type]  # noqa: UP007


_SENT: tuple[type[Any], ...] = (
    _Transact,
    *(kind for kind in OFFERED if kind is not base.Transact),
)


class Hello(Struct, frozen=True):
    """The first frame of a server: names the server, and states the limits of requests."""

    version: int
    instance: str
    limits: Limits
    requests_max: int
    """Requests without an answer; further requests wait."""
    frame_bytes_max: int
    leader: str = ""
    """The address of the cluster's leading node, if another node sends this."""
    release: str = ""
    """The version of Millstream that the server runs; "" before servers named it."""
    abilities: tuple[str, ...] = ()
    """What the server can do beyond the first version of the protocol (`abilities.py`)."""


class _Greeter(Struct, frozen=True):
    """The keys of a greeting that every version of the protocol has."""

    version: int
    release: str = ""


class _Failure(Struct, frozen=True, array_like=True):
    name: str
    message: str
    data: dict[str, Any]


def _plain(value: Any) -> Any:
    if type(value) is MappingProxyType:
        return value.copy()
    return dict(value) if isinstance(value, Mapping) else str(value)


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_requests: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
    list[tuple[int, Union[_SENT]]]  # type: ignore[valid-type]  # noqa: UP007
)
_command: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Union[_SENT])  # noqa: UP007
_answers = msgspec.msgpack.Decoder(list[tuple[int, int, Raw]])
_placed = msgspec.msgpack.Decoder(tuple[Raw, int])
_failure = msgspec.msgpack.Decoder(_Failure)
_hello = msgspec.msgpack.Decoder(Hello)
_greeter = msgspec.msgpack.Decoder(_Greeter)


def encode_command(command: Command[Any]) -> Raw:
    """Encode a command for `encode_requests`.

    Commands that a server would refuse are refused here: the server's refusal would concern the
    whole frame.
    """
    _check_offered(command)
    try:
        data = _encode(command)
        _command.decode(data)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(
            f"{type(command).__name__} cannot be asked like this: {error}"
        ) from error
    return Raw(data)


def encode_internal(command: Command[Any]) -> Raw:
    """Encode a command for a frame between nodes, including commands that clients may not send."""
    return Raw(_encode(command))


def encode_requests(requests: Sequence[tuple[int, Raw]]) -> bytes:
    """Encode a frame of numbered requests."""
    return _encode(requests)


def _check_offered(command: Command[Any]) -> None:
    steps = command.steps if isinstance(command, base.Transact) else [command]
    for step in steps:
        if isinstance(step, base.Sql | base.QuerySql):
            verb = "tx.sql" if isinstance(step, base.Sql) else "ms.sql"
            raise InvalidInput(
                f"{verb} needs the store's own file; a server or a cluster does not offer it: keep "
                "the application's tables in a database of its own"
            )


def decode_requests(data: bytes) -> list[tuple[int, Command[Any]]]:
    """Decode a frame of requests. Raises `InvalidInput` for other bytes."""
    return _decode_with(_requests, data)


def decode_internal(data: bytes) -> list[tuple[int, Command[Any]]]:
    """Decode a frame of requests from another node."""
    return _decode_with(_internal_decoder(), data)


def _decode_with(
    decoder: msgspec.msgpack.Decoder[Any], data: bytes
) -> list[tuple[int, Command[Any]]]:
    requests: list[tuple[int, Any]]
    try:
        requests = decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"not a frame of requests: {error}") from error
    for at, (number, command) in enumerate(requests):
        if type(command) is _Transact:
            requests[at] = number, base.Transact(command.steps)
    return requests


@cache
def _internal_decoder() -> msgspec.msgpack.Decoder[Any]:
    internal = [kind for kind in COMMANDS if kind.traits.needs == "internal"]
    kinds = (*_SENT, *(kind for kind in internal if kind not in (base.Sql, base.QuerySql)))
    return msgspec.msgpack.Decoder(list[tuple[int, Union[kinds]]])  # type: ignore[valid-type]  # noqa: UP007


def encode_answers(answers: list[tuple[int, Any]]) -> bytes:
    """Encode a frame of answers: results, or errors."""
    return _encode(
        [
            (number, 1, _Failure(type(outcome).__name__, *told_elsewhere(outcome)))
            if isinstance(outcome, MillstreamError)
            else (number, 0, outcome)
            for number, outcome in answers
        ]
    )


def decode_answers(data: bytes) -> list[tuple[int, Raw | MillstreamError]]:
    """Decode a frame of answers; `decode_result` decodes the results by their types."""
    try:
        return [
            (number, _error(bytes(raw)) if failed else raw)
            for number, failed, raw in _answers.decode(data)
        ]
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"not a frame of answers: {error}") from error


def decode_result(command: Command[T], raw: Raw) -> T:
    """Decode the answer to a command as its result type."""
    result: T = _result_decoder(type(command)).decode(raw)
    return result


def decode_placed(raw: Raw) -> tuple[Raw, int]:
    """Decode an answer between nodes: the result, and the entry of the shared log that contains it."""
    return _placed.decode(raw)


def encode_hello(hello: Hello) -> bytes:
    """Encode the first frame of a server."""
    return _encode(hello)


def decode_hello(data: bytes) -> Hello:
    """Decode the first frame of a server. Raises `InvalidInput` for another version."""
    try:
        greeter = _greeter.decode(data)
        if greeter.version == VERSION:
            return _hello.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"this is no Millstream server: {error}") from error
    server = f"Millstream {greeter.release}" if greeter.release else "the server"
    raise InvalidInput(
        f"{server} speaks version {greeter.version} of the protocol, and this client speaks version "
        f"{VERSION}: install the same version of Millstream on both sides"
    )


def _error(data: bytes) -> MillstreamError:
    failure = _failure.decode(data)
    kind = getattr(errors, failure.name, MillstreamError)
    if not (isinstance(kind, type) and issubclass(kind, MillstreamError)):
        kind = MillstreamError
    return kind(failure.message, **{key: _unlisted(field) for key, field in failure.data.items()})


def _unlisted(value: Any) -> Any:
    """Turn lists of lists into lists of tuples: runs and ranges lose that type on the wire."""
    if isinstance(value, list):
        return [tuple(item) if isinstance(item, list) else item for item in value]
    return value


@cache
def _result_decoder(kind: type[Command[Any]]) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder for the type in `Read[...]` and the like, from which the class was made."""
    (parent,) = kind.__orig_bases__  # type: ignore[attr-defined]
    (answer,) = get_args(parent)
    return msgspec.msgpack.Decoder(answer)
