"""Names on the command line: of logs, queues and rooms, which a shell completes from the store."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any

import typer

from millstream import Millstream
from millstream.cli.place import StorePlace

NAMES_MAX = 100
"""Names that a shell is offered."""

CONNECT_S = 1.0
"""How long a shell waits for a server that may know names."""


def completed(listed: Callable[[Millstream], Any]) -> Callable[[typer.Context, str], list[str]]:
    """Names that begin as typed; none if the store cannot be opened now."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        options = {**context.find_root().params, **context.params}
        given = {name: options[name] for name in StorePlace.__match_args__ if options.get(name)}
        try:
            with StorePlace(**given).opened(connect_timeout=CONNECT_S, retry_for=0) as ms:
                found = (one.name for one in listed(ms))
                return list(islice((n for n in found if n.startswith(incomplete)), NAMES_MAX))
        except Exception:  # whatever it is, a shell that completes has no place to tell it
            return []

    return complete


LogName = Annotated[
    str,
    typer.Argument(metavar="LOG", help="The log.", autocompletion=completed(Millstream.logs)),
]
QueueName = Annotated[
    str,
    typer.Argument(metavar="QUEUE", help="The queue.", autocompletion=completed(Millstream.queues)),
]
RoomName = Annotated[
    str,
    typer.Argument(metavar="ROOM", help="The room.", autocompletion=completed(Millstream.rooms)),
]
