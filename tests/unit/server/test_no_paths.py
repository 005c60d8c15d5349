"""No error that reaches a client names a place on the server's disk."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream import errors
from millstream.engine.disk import full
from millstream.engine.protocol import Shortage
from millstream.engine.sqlite.file import damaged, explained
from millstream.engine.sqlite.lock import still_locked
from millstream.errors import MillstreamError, told_elsewhere
from millstream.server.problems import problem_of
from millstream.wire import commands as wire

PLACE = "/srv/secret place/größe/shop.db"
PLAIN = "/var/lib/secret/shop.db"


def every_class() -> list[type[MillstreamError]]:
    kinds = [one for _, one in inspect.getmembers(errors, inspect.isclass)]
    return [one for one in kinds if issubclass(one, errors.StoreError)] + [
        errors.Overloaded,
        errors.CorruptionError,
    ]


def samples() -> list[MillstreamError]:
    import apsw

    found: list[MillstreamError] = [
        full(Path(PLACE).parent, "disk full"),
        full(Path(PLAIN).parent, "disk full"),
        Shortage(str(Path(PLACE).parent), 1, 2, 3).error(),
        damaged(Path(PLACE), "its header is not what was written"),
        damaged(Path(PLAIN), "its header is not what was written"),
        explained(apsw.IOError("disk I/O error"), Path(PLACE)),
        still_locked(Path(PLACE), 50),
    ]
    for kind in every_class():
        found.append(kind(f"{PLACE}: it failed, see {PLACE}-wal", path=PLACE))
        found.append(kind(f"{PLAIN} failed; `millstream doctor {PLAIN}` says more", where=PLAIN))
        found.append(kind(f"{PLAIN}-wal cannot be read ({PLAIN}-shm)"))
    return found


@pytest.mark.parametrize("error", samples(), ids=lambda one: type(one).__name__)
def test_neither_rest_nor_the_socket_names_a_path(error: MillstreamError) -> None:
    rest = msgspec.json.encode(problem_of(error)).decode()
    ((_, answer),) = wire.decode_answers(wire.encode_answers([(1, error)]))
    assert isinstance(answer, MillstreamError)
    assert type(answer) is type(error)
    for told in (rest, answer.message, repr(answer.data)):
        for secret in ("secret", "/srv", "/var", "größe", "shop.db"):
            assert secret not in told, told
    assert "secret" in f"{error.message}{error.data}"  # the server's own log has it


@pytest.mark.parametrize(
    "error",
    [
        errors.NotLeader("ask the leader at http://a:8080/x or https://b.example:1/path/to"),
        errors.NotFound("there is nothing at this address; /docs lists what there is"),
        errors.InvalidInput("a name such as /var/lib/x is what the client sent", name="/var/lib/x"),
        errors.CorruptionError("the row 0203 is damaged", what="row", where="0203"),
        errors.Overloaded("1,000/2,000 operations wait and/or run"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_is_no_path_of_the_server_stays(error: Any) -> None:
    assert told_elsewhere(error) == (error.message, error.data)
