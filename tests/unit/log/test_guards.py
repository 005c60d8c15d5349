"""Guards: parts above the logs check operations on logs of their names, and on no others."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import InvalidInput, NotFound
from millstream.format import keys
from millstream.log.commands import CreateLog
from millstream.log.model.names import ROOM
from millstream.log.rules.guards import GuardedRule, LogGuard
from millstream.log.rules.operations import create_log
from millstream.store.commit.transaction import WriteTransaction
from millstream.testing import Probe
from millstream.threads.database import Millstream


def test_guards_run_before_the_rule_and_each_for_its_names_alone(ms: Millstream) -> None:
    called: list[tuple[str, str]] = []

    def noting(name: str) -> Any:
        return lambda tx, command: called.append((name, command.log))

    rule = GuardedRule(
        noting("rule"), LogGuard(("a:", "b:"), noting("first")), LogGuard(("b:",), noting("second"))
    )
    for log in ("a:1", "b:1", "c:1"):
        Probe(ms).store.run(lambda tx, log=log: rule(tx, CreateLog(log)))  # type: ignore[misc]
    assert called == [
        ("first", "a:1"),
        ("rule", "a:1"),
        ("first", "b:1"),
        ("second", "b:1"),
        ("rule", "b:1"),
        ("rule", "c:1"),
    ]


def test_a_guard_that_refuses_leaves_nothing_behind(ms: Millstream) -> None:
    def refuse(tx: WriteTransaction, command: CreateLog) -> None:
        create_log(tx, command)
        raise InvalidInput("no")

    rule = GuardedRule(create_log, LogGuard(("a:",), refuse))
    with pytest.raises(InvalidInput):
        Probe(ms).store.run(lambda tx: rule(tx, CreateLog("a:1")))
    assert "a:1" not in [info.name for info in ms.logs()]


def test_logs_of_queues_that_are_not_there_take_no_appends(ms: Millstream) -> None:
    with pytest.raises(NotFound):
        ms.log("queue:missing").append(b"x")
    with pytest.raises(NotFound), ms.transaction() as tx:
        tx.append("queue-later:missing", b"x")


def test_the_log_of_a_room_goes_with_everything_beside_it(ms: Millstream) -> None:
    ms.room("lobby").specify(retained=["state"])
    ms.room("lobby").send("state", "open")
    store = Probe(ms).store
    rows = keys.of_queue(keys.RETAINED, store.seen(keys.log_name(f"{ROOM}lobby")))
    assert store.view(lambda view: view.scan(*rows, limit=1))
    assert ms.log(f"{ROOM}lobby").delete()
    assert not store.view(lambda view: view.scan(*rows, limit=1))
    assert not ms.room("lobby").retained().values
