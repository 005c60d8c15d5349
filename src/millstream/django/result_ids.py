"""Ids of results: the id of the job, or the place from which to look for the job.

An enqueue in a transaction returns an id before its message exists. The id names the queue, the id
that the next message would get, and a random token. The message carries the whole id as a
header, and has the number of the id or a later one, so the search begins there.
"""

from __future__ import annotations

import re
import secrets
from typing import NamedTuple

from millstream.log.model.names import check_name

ID_HEADER = "job-django"
"""The header of a message that was enqueued in a transaction: the id of its result."""

_PATTERN = re.compile(r"(?P<queue>.+?)-(?P<number>[0-9]{1,19})(-t(?P<token>[0-9a-f]{16}))?")


class ResultId(NamedTuple):
    """The parts of an id."""

    queue: str
    put_id: int
    """The id of the message; with a token, the first id that the message may have."""
    token: str = ""

    def __str__(self) -> str:
        return f"{self.queue}-{self.put_id}" + (f"-t{self.token}" if self.token else "")


def new_result_id(queue: str, first_put_id: int) -> ResultId:
    """Return the id of a result whose message does not exist yet."""
    return ResultId(queue, first_put_id, secrets.token_hex(8))


def parse_result_id(text: object) -> ResultId | None:
    """Return the parts of an id; None for a text that is no id of ours."""
    match = _PATTERN.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    return ResultId(check_name(match["queue"], "queue"), int(match["number"]), match["token"] or "")
