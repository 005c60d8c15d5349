"""Long-running commands: their lines have a time and a level."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from millstream.cli.events import report_event, warnings_shown

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def test_a_failed_attempt_of_a_worker_is_a_line_with_time_and_level(cli: Any) -> None:
    cli("queue", "create", "mail", "--max-attempts", "1")
    cli("put", "mail", "x")
    cli("exec", "mail", "--drain", "sh -c 'echo no address >&2; exit 1'")
    (line,) = [line for line in cli.stderr.splitlines() if "claim=" in line]
    assert re.fullmatch(rf"{TIME} warning queue=mail claim=\d+:1 attempt failed: no address", line)


def test_log_lines_of_the_library_have_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings_shown():
        logging.getLogger("millstream.cursor").warning("records_lost log=%s", "orders")
        report_event("waits for a server")
    logging.getLogger("millstream.cursor").warning("not shown")
    first, second = capsys.readouterr().err.splitlines()[:2]
    assert re.fullmatch(rf"{TIME} warning records_lost log=orders", first)
    assert re.fullmatch(rf"{TIME} info waits for a server", second)
