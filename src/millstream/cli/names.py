"""Names on the command line: of logs, queues and rooms, completed by the shell."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any

import typer

from millstream import Millstream
from millstream.cli.place import StorePlace

NAMES_MAX = 100
"""Most names that a shell is offered."""

CONNECT_S = 1.0
"""How long a shell waits for a server's answer."""


def completed(listed: Callable[[Millstream], Any]) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion that offers matching names; none if the store cannot be opened."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        options = {**context.find_root().params, **context.params}
        place = {name: options[name] for name in StorePlace.__match_args__ if options.get(name)}
        try:
            with StorePlace(**place).opened(connect_timeout=CONNECT_S, retry_for=0) as ms:
                names = (listing.name for listing in listed(ms))
                matching = (name for name in names if name.startswith(incomplete))
                return list(islice(matching, NAMES_MAX))
        except Exception:  # a shell that completes cannot show any error
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
