"""What may be a handler is known before any message is claimed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream import HandlerTransaction, Message
from millstream.errors import InvalidInput
from millstream.worker.handler import check_handler, is_async, wants_transaction


def one(message: Any) -> None: ...


def two(message: Any, tx: Any) -> None: ...


def three(message: Any, tx: Any, more: Any) -> None: ...


def none() -> None: ...


def keyword(message: Any, *, needed: int) -> None: ...


def default(message: Any, verbose: bool = False, *, loud: bool = False) -> None: ...


def anything(*given: Any, **named: Any) -> None: ...


def yields(message: Any) -> Iterator[int]:
    yield 1


async def yields_async(message: Any) -> AsyncIterator[int]:
    yield 1


async def coroutine(message: Any, tx: Any) -> None: ...


class Called:
    """A handler with a state."""

    async def __call__(self, message: Any) -> None: ...

    def method(self, message: Any, tx: Any) -> None: ...

    def without(self) -> None: ...


@pytest.mark.parametrize(
    ("handler", "transacts", "coroutines"),
    [
        (one, False, False),
        (two, True, False),
        (default, False, False),
        (anything, False, False),
        (print, False, False),
        (coroutine, True, True),
        (Called(), False, True),
        (Called().method, True, False),
        (partial(three, 1), True, False),
        (partial(coroutine, tx=1), False, True),
        ([].append, False, False),
    ],
)
def test_these_are_handlers(handler: Any, transacts: bool, coroutines: bool) -> None:
    check_handler(handler)
    assert (wants_transaction(handler), is_async(handler)) == (transacts, coroutines)


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (three, "three takes 3 parameters"),
        (none, "none takes no parameters"),
        (Called().without, "without takes no parameters"),
        (keyword, "keyword needs the keyword 'needed': give it a default"),
        (yields, "yields yields, so a call of it would run nothing"),
        (yields_async, "would run nothing"),
        ("one", "got str"),
        (None, "got NoneType"),
        (coroutine(1, 2), "got coroutine"),
    ],
)
def test_these_are_refused_with_what_is_expected(handler: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        check_handler(handler)
    assert "`handler(message)` or `handler(message, tx)`" in str(refused.value)
    getattr(handler, "close", lambda: None)()  # the coroutine that no caller awaits


@pytest.mark.embedded
def test_a_handler_writes_the_tables_of_the_application_with_its_acknowledgement(
    tmp_path: Path,
) -> None:
    def bill(message: Message, tx: HandlerTransaction) -> None:
        tx.sql("CREATE TABLE IF NOT EXISTS bills (customer TEXT)")
        tx.sql("INSERT INTO bills VALUES (?)", [message.text])

    with millstream.open(tmp_path / "shop.db") as ms:
        orders = ms.create_queue("orders")
        orders.put("ada")
        assert orders.worker(bill).run(drain=True).done == 1
        assert ms.sql("SELECT customer FROM bills").rows == [("ada",)]
