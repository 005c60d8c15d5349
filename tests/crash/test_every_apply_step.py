"""A process that ends at every single step of `apply`: all changes are made, or none; a repeat completes.

The store is stopped once at each step of its engine. Opened again, it has the topology of before or of
after, and the next run makes it the topology of after. The tokens of a file of secrets then work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millstream import Millstream, topology
from millstream.embedded.session import EmbeddedSession, open_store
from millstream.server.auth.register import Registrar
from millstream.testing import Crash, Faults, MemoryEngine, Probe, SimulatedClock

pytestmark = pytest.mark.faults

BETWEEN = ("get", "scan", "read", "put", "delete")

BEFORE: dict[str, Any] = {
    "logs": {"orders": {"partitions": 2}, "old": {}},
    "queues": {"mail": {"sources": ["orders"]}},
    "rooms": {"hall": {"retained": ["rect"]}, "attic": {}},
    "schedules": {"nightly": {"task": "a", "every": "1h"}, "gone": {"task": "b", "every": "1h"}},
    "tokens": {"billing": {"permissions": ["store:read"]}, "former": {"permissions": ["admin"]}},
}
AFTER: dict[str, Any] = {
    "logs": {"orders": {"partitions": 4, "metadata": {"team": "blue"}}, "new": {}},
    "queues": {"mail": {"sources": ["orders"], "lease": "1m"}, "post": {"sources": ["new"]}},
    "rooms": {"hall": {"ttl": "1h"}},
    "schedules": {"nightly": {"task": "c", "every": "2h"}, "sweep": {"task": "d", "every": "5m"}},
    "tokens": {"billing": {"permissions": ["admin"]}, "web": {"permissions": ["store:read"]}},
}


def opened(engine: MemoryEngine) -> Millstream:
    """A store whose background thread never starts: every step is taken by the test."""
    store = open_store(engine, clock=SimulatedClock(1_700_000_000_000))
    Probe(store).pause_keeper()
    return Millstream(EmbeddedSession(store))


def dump_of(engine: MemoryEngine) -> dict[str, Any]:
    return topology.dump(opened(engine))


def keep_in(secrets: dict[str, str]) -> Callable[[Any], None]:
    return lambda new: secrets.update({secret.name: secret.text for secret in new})


def test_a_stop_at_any_step_applies_everything_or_nothing() -> None:
    prepared = MemoryEngine()
    topology.apply(opened(prepared), BEFORE)
    before = dump_of(prepared.reopen())
    counted = Faults()
    whole = prepared.reopen(faults=counted)
    topology.apply(opened(whole), AFTER, prune=True)
    after = dump_of(whole.reopen())
    assert after != before
    assert "sent" in counted.steps

    between = [index for index, step in enumerate(counted.steps) if step in BETWEEN]
    left_out = set(between) - set(between[:: max(1, len(between) // 12)])
    for index, step in enumerate(counted.steps):
        if index in left_out:
            continue  # reads, and changes that are lost: a sample is enough
        for kept in (False, True) if step == "sent" else (False,):
            faults = Faults()
            faults.at(index, Crash(kept=kept))
            engine = prepared.reopen(faults=faults)
            secrets: dict[str, str] = {}
            with pytest.raises(Crash):
                topology.apply(opened(engine), AFTER, prune=True, keep_secrets=keep_in(secrets))

            stopped = engine.reopen()
            told = f"step {index} ({step}, kept={kept})"
            assert dump_of(stopped) in (before, after), told
            again = opened(stopped)
            topology.apply(again, AFTER, prune=True, keep_secrets=keep_in(secrets))
            assert topology.dump(again) == after, told
            assert topology.apply(again, AFTER, prune=True).plan.changes == [], told
            tokens = {token.name: token for token in Registrar(again).tokens()}
            assert secrets["web"].startswith(f"ms_{tokens['web'].id}_"), told
