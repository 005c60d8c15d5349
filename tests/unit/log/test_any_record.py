"""Any record comes back as it was given, on every road: alone, in batches, folded, copied, claimed."""

from __future__ import annotations

from itertools import count
from typing import Any

import hypothesis
from hypothesis import strategies as st

from millstream import Headers, Item, Message, Millstream, Record
from tests.records import ITEMS

NUMBERS = count()

any_of_them = hypothesis.settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
    ],
)


def given(item: Item) -> tuple[Any, ...]:
    key = item.key.encode() if isinstance(item.key, str) else item.key
    return item.value, key, Headers(item.headers or {}).pairs()


def seen(one: Record | Message) -> tuple[Any, ...]:
    return one.value, one.key, one.headers.pairs()


@any_of_them
@hypothesis.given(st.lists(ITEMS, min_size=1, max_size=6), st.booleans())
def test_what_is_read_claimed_and_copied_is_what_was_appended(
    ms: Millstream, items: list[Item], together: bool
) -> None:
    name = f"log-{next(NUMBERS)}"
    log, wanted = ms.log(name), [given(item) for item in items]
    queue = ms.queue(f"q-{name}", sources=[name])
    if together:
        log.append_many(items)
    else:
        for item in items:
            log.append(item.value, key=item.key, headers=item.headers)

    assert [seen(one) for one in log.read()] == wanted
    assert [seen(one) for one in queue.claim(len(items))] == wanted
    assert [seen(one) for one in queue.peek(len(items), state="in_flight")] == wanted
    copy = ms.log(f"{name}-copy")
    copy.append_many([Item(one.value, one.key, one.headers) for one in log.read()])
    assert [seen(one) for one in copy.read()] == wanted
    with ms.transaction() as tx:
        for item in items:
            tx.append(f"{name}-tx", item.value, key=item.key, headers=item.headers)
    assert [seen(one) for one in ms.log(f"{name}-tx").read()] == wanted
    with ms.log(f"{name}-stage").stage() as stage:
        for item in items:
            stage.append(item.value, key=item.key, headers=item.headers)
        assert [seen(one) for one in stage.read()] == wanted
    assert [seen(one) for one in ms.log(f"{name}-stage").read()] == wanted
