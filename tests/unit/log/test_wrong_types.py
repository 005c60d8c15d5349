"""A wrong type is refused at the door: nothing that cannot be read back is ever stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream import Log, Millstream, Producer
from millstream.errors import MillstreamError

WRONG: dict[str, Callable[[Log], Any]] = {
    "truncate": lambda log: log.truncate(before=1.5),  # type: ignore[arg-type]
    "truncate too far": lambda log: (log.truncate(before=2**64 - 1), log.append(b"x")),
    "truncate much too far": lambda log: log.truncate(before=2**70),
    "seek": lambda log: log.cursor("c").seek(1.5),  # type: ignore[arg-type]
    "ack_up_to": lambda log: log.cursor("c").ack_up_to(1.5),  # type: ignore[arg-type]
    "section": lambda log: log.cursor("c", section=1.5),  # type: ignore[arg-type]
    "retention by count": lambda log: log.retain(count=1.5),  # type: ignore[arg-type]
    "retention by age": lambda log: log.retain(age=float("inf")),
    "retention by a huge age": lambda log: log.retain(age=1e300),
    "consumed": lambda log: log.retain(consumed="yes"),  # type: ignore[arg-type]
    "sequence": lambda log: log.append(b"x", producer=Producer("p", 1.5)),  # type: ignore[arg-type]
    "huge sequence": lambda log: log.append(b"x", producer=Producer("p", 2**70)),
    "negative epoch": lambda log: log.append(b"x", producer=Producer("p", 0, -1)),
    "producer's name": lambda log: log.append(b"x", producer=Producer("", 0)),
    "producer of another type": lambda log: log.append(b"x", producer="p"),  # type: ignore[arg-type]
    "cursor's name": lambda log: log.delete_cursor(5),  # type: ignore[arg-type]
    "text key": lambda log: log.append(b"x", key="\ud800"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_it_is_refused_and_the_store_opens_again(
    reopen: Callable[..., Millstream], wrong: Callable[[Log], Any]
) -> None:
    log = reopen().log("x")
    log.append_many([b"0", b"1", b"2"])
    with pytest.raises((MillstreamError, TypeError)) as refused:
        wrong(log)

    assert "OutcomeUnknown" not in repr(refused.value)
    again = reopen()
    assert again.log("x").append(b"3") == 3
    again.fold()
    assert len(list(reopen().log("x").read())) == 4
