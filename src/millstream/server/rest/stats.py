"""Stats: facts and counters of the store."""

from __future__ import annotations

from typing import Any

from millstream.command import Stats
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Answer, Endpoint

_OF_THIS_MACHINE = ("path",)
"""Facts that are not shown across a network."""


async def stats(ask: Ask) -> dict[str, Any]:
    """Facts and counters."""
    found = await ask.execute(Stats())
    return {name: fact for name, fact in found.items() if name not in _OF_THIS_MACHINE}


ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/stats",
        name="getStats",
        summary="Facts and counters of the store",
        run=stats,
        tag="store",
        answers=(Answer(dict[str, Any]),),
    ),
)
