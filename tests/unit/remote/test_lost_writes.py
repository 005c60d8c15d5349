"""Every command that writes, sent over a connection that is cut: its outcome is unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import millstream
from millstream import aio
from millstream.command import Command, Transact
from millstream.errors import CannotOpen, MillstreamError, OutcomeUnknown
from millstream.log.commands import DeleteLog
from tests.unit.remote.conftest import Call
from tests.unit.remote.proxy import Proxy
from tests.unit.samples import offered, required

WRITING = [kind for kind in offered() if kind.writes]
READING = [kind for kind in offered() if not kind.writes and kind.traits.waits is None]


def made(kind: type[Command[Any]]) -> Any:
    return Transact([DeleteLog("a")]) if kind is Transact else required(kind)


def cut_for_good(proxy: Proxy) -> None:
    """The request has been heard, its answer is lost, and the server stays away."""
    assert proxy.lost.wait(30)
    proxy.takes_nobody = True
    proxy.cut()


def lost_by_threads(proxy: Proxy, command: Any) -> Any:
    proxy.heal()
    with millstream.open(proxy.url, retry_for=0) as ms:
        proxy.loses_answers = True
        call = Call(lambda: ms.session.execute(command))
        cut_for_good(proxy)
        return call.result()


async def lost_by_coroutines(proxy: Proxy, command: Any) -> Any:
    proxy.heal()
    async with await aio.open(proxy.url, retry_for=0) as ms:
        proxy.loses_answers = True
        asked = asyncio.create_task(ms.session.execute(command))
        await asyncio.to_thread(cut_for_good, proxy)
        try:
            async with asyncio.timeout(30):
                return await asked
        except MillstreamError as error:
            return error


def test_there_is_something_to_lose() -> None:
    names = {kind.__name__ for kind in WRITING}
    assert {"AssignMessages", "AdoptParcel", "EnforceRetention", "MergeFork", "Fold"} <= names


@pytest.mark.parametrize("kind", WRITING, ids=lambda kind: kind.__name__)
def test_of_a_lost_write_nobody_knows(proxy: Proxy, kind: type[Command[Any]]) -> None:
    found = lost_by_threads(proxy, made(kind))
    assert isinstance(found, OutcomeUnknown)
    assert kind.__name__ in found.message
    found = asyncio.run(lost_by_coroutines(proxy, made(kind)))
    assert isinstance(found, OutcomeUnknown)


@pytest.mark.parametrize("kind", READING, ids=lambda kind: kind.__name__)
def test_a_lost_read_has_failed(proxy: Proxy, kind: type[Command[Any]]) -> None:
    assert isinstance(lost_by_threads(proxy, made(kind)), CannotOpen)
