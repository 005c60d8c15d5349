"""The lease of `millstream serve` on object storage: taken before serving, released after."""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from millstream.cli.display import safe
from millstream.cli.events import report_event
from millstream.clock import SystemClock
from millstream.engine.place import is_bucket
from millstream.errors import Fenced

if TYPE_CHECKING:
    from millstream.engine.protocol import Engine
    from millstream.objects.lease import LeaseKeeper, Loss
    from millstream.server.serving import Serving
    from millstream.store.store import Store


@contextmanager
def leased(
    place: str, serving: Callable[[], Serving | None], *, standby: bool, on_fenced: str
) -> Iterator[dict[str, Any]]:
    """Hold the lease of a bucket while the block runs; a standby first waits for the lease.

    Yields the arguments for the server: how to open the store under the lease. Files have no lease,
    and neither have the test places `file:` and `memory:`, which other machines cannot reach.
    """
    if on_fenced not in ("exit", "follow"):
        raise typer.BadParameter(f"--on-fenced must be exit or follow, not {on_fenced!r}")
    if not is_bucket(place) or place.lower().startswith(("file:", "memory:")):
        if standby:
            raise typer.BadParameter("--standby is for object storage, such as s3://bucket/prefix")
        yield {}
        return
    from millstream.engine.open import load_engine
    from millstream.objects.address import parse_address
    from millstream.objects.folder import ObjectFolder
    from millstream.objects.lease import LeaseKeeper, ObjectLease, wait_for_lease
    from millstream.spark.sink.adopter import Adopter

    load_engine(place)  # now: later, while the lease runs, every second counts
    holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    objects = ObjectFolder(parse_address(place))
    lease = ObjectLease(objects, holder)
    if standby:
        report_event(f"standby: waiting for the lease of {safe(place)}")
        before = wait_for_lease(lease, SystemClock(), threading.Event())
        report_event(f"standby: took over {safe(place)} from {safe(before or 'no server')}")
    else:
        lease.seize()

    def store() -> Store | None:
        current = serving()
        return None if current is None or current.core is None else current.core.store

    def is_fenced() -> bool:
        current = store()
        return current is not None and current.engine.shared

    def written() -> Store | None:
        return None if is_fenced() else store()

    def lost(why: Loss) -> None:
        report_event(f"another server now writes to {safe(place)} ({why})", "warning")
        current = serving()
        if on_fenced == "exit" and current is not None:
            current.give_up(Fenced(f"another server has taken over {place}: this server ends"))

    adopter = Adopter(objects, written)
    keeper = LeaseKeeper(
        lease, place=place, is_fenced=is_fenced, on_lost=lost, on_called=adopter.call
    )
    adopter.start()
    try:
        yield {"make_engine": lambda: _opened(place, keeper)}
    finally:
        adopter.close()
        keeper.close()


def _opened(place: str, keeper: LeaseKeeper) -> Engine:
    """Open the store, only while the lease is held: opening fences the previous writer."""
    from millstream.engine.open import open_engine

    engine = open_engine(place, before_fencing=keeper.check)
    try:
        keeper.check()
    except BaseException:
        engine.close()
        raise
    return engine
