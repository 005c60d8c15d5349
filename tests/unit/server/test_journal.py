"""The journal: lines of JSON with what happened, and nothing that somebody sent."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

import millstream
from millstream.errors import InvalidInput
from millstream.server import journal
from millstream.server.auth.tokens import create_token
from millstream.server.serving import running
from millstream.server.settings import Settings
from millstream.wire import commands as wire
from tests.unit.server.asking import Rest, served


@pytest.fixture
def stream() -> io.StringIO:
    found = io.StringIO()
    journal.write_to(found, requests=True)
    return found


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_told_with_its_facts(stream: io.StringIO) -> None:
    logging.getLogger("millstream.server").warning("something", extra={"count": 3})
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["count"]) == ("something", "warning", 3)
    assert isinstance(line["time_ms"], int)
    assert list(line)[:3] == ["time", "level", "event"]
    time = datetime.fromisoformat(str(line["time"]))
    assert (time.utcoffset(), round(time.timestamp() * 1000)) == (timedelta(0), line["time_ms"])


def test_of_an_exception_its_kind_and_place_are_told(stream: io.StringIO) -> None:
    try:
        raise ValueError("a payload\nof two lines")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application")
    (line,) = lines(stream)
    assert line["error"] == "ValueError"
    assert "test_journal.py:" in str(line["where"])
    assert "payload" not in stream.getvalue()


def test_requests_are_lines_of_their_own(stream: io.StringIO) -> None:
    logging.getLogger(journal.ACCESS).info('{"event":"request"}')
    assert lines(stream) == [{"event": "request"}]


def test_a_mistake_of_ours_is_noted_without_what_was_sent(stream: io.StringIO) -> None:
    @served
    async def ask(rest: Rest) -> None:
        async def fail(*_: object) -> None:
            raise ZeroDivisionError("secret payload")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rest.core.session, "execute", fail)
            answer = await rest.post("/logs/a/records", content=b"secret payload")
        assert answer.status_code == 500
        assert "secret" not in answer.text

    ask()
    (line,) = lines(stream)
    assert (line["event"], line["error"]) == ("request_failed", "ZeroDivisionError")
    assert "secret" not in stream.getvalue()


REFUSED = {
    "bad token": ("/socket", {"Authorization": "Bearer ms_no_good"}, wire.SUBPROTOCOL, 401),
    "no token": ("/socket", {}, wire.SUBPROTOCOL, 401),
    "wrong path": ("/elsewhere", None, wire.SUBPROTOCOL, 404),
    "wrong subprotocol": ("/socket", None, "chat", 400),
    "no subprotocol": ("/socket", None, "", 400),
}


@pytest.mark.parametrize("log_requests", [False, True])
@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_socket_is_one_line_and_no_error(
    stream: io.StringIO, tmp_path: Path, kind: str, log_requests: bool
) -> None:
    path, headers, subprotocol, status = REFUSED[kind]
    with millstream.open(tmp_path / "a.db") as ms:
        _, token = create_token(ms, "t", ["*:admin"])
    if headers is None:
        headers = {"Authorization": f"Bearer {token}"}
    settings = Settings(port=0, auth="on", log_requests=log_requests)
    with running(tmp_path / "a.db", settings) as server:
        address = server.socket_url.removesuffix("/socket") + path
        offered = [Subprotocol(subprotocol)] if subprotocol else None
        with pytest.raises(InvalidStatus) as refused:
            connect(address, additional_headers=headers, subprotocols=offered, open_timeout=60)
    assert refused.value.response.status_code == status
    (line,) = lines(stream)
    assert list(line)[:3] == ["time", "level", "event"]
    assert line["level"] == ("info" if log_requests else "warning")
    assert line["event"] == ("request" if log_requests else "socket_refused")
    assert (line["path"], line["status"]) == (path, status)
    assert str(line["time"]).endswith("Z")


@pytest.fixture
def _usual_levels() -> Iterator[None]:
    yield
    journal.write_to(io.StringIO(), requests=False)


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.mark.usefixtures("_usual_levels")
def test_lines_are_text_on_a_terminal_and_json_elsewhere() -> None:
    logger = logging.getLogger("millstream.cluster")
    streams = {
        (form, kind): kind()
        for form in ("auto", "text", "json")
        for kind in (Terminal, io.StringIO)
    }
    for (form, _), stream in streams.items():
        journal.write_to(stream, requests=True, form=form)
    facts = {"why": "two words", "count": 3, "node": "a\x1b[31m"}
    logger.warning("node_halted", extra=facts)
    logging.getLogger(journal.ACCESS).info('{"event":"request","status":200}')
    for (form, kind), stream in streams.items():
        first, second = stream.getvalue().splitlines()
        if form == "text" or (form, kind) == ("auto", Terminal):
            assert first[23:] == (
                'Z warning cluster node_halted why="two words" count=3 node=a\\x1b[31m'
            )
            assert second.endswith("access request status=200")
        else:
            assert json.loads(first)["why"] == "two words"
            assert json.loads(second) == {"event": "request", "status": 200}


@pytest.mark.usefixtures("_usual_levels")
def test_each_part_has_a_level(stream: io.StringIO) -> None:
    journal.write_to(stream, requests=False, levels=["error,cluster=debug", "rooms=info"])
    for part in ("server", "cluster", "rooms"):
        logger = logging.getLogger(f"millstream.{part}")
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logger.log(level, "event")
    told = {(str(line["logger"]), line["level"]) for line in lines(stream)}
    assert told == {
        ("millstream.server", "error"),
        *(("millstream.cluster", level) for level in ("debug", "info", "warning", "error")),
        *(("millstream.rooms", level) for level in ("info", "warning", "error")),
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("loud", "a level of log lines is debug, info, warning, error, or PART=LEVEL, not 'loud'"),
        ("clutser=info", "log lines have no part 'clutser': did you mean 'cluster'?"),
        ("", "not ''"),
    ],
)
def test_a_wrong_level_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(told)):
        Settings(log_levels=(text,)).check()


def test_a_wrong_format_is_refused() -> None:
    with pytest.raises(InvalidInput, match="log_format is auto, text, json, not 'xml'"):
        Settings(log_format="xml").check()  # type: ignore[arg-type]
