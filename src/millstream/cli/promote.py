"""`millstream promote`: promote a standby to primary."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from millstream.cli.display import Printed, safe
from millstream.cli.place import StorePlace
from millstream.errors import CannotOpen, Conflict

TIMEOUT_S = 60.0


def promote(
    place: StorePlace,
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="The standby.", show_default="--store")
    ] = None,
) -> Printed:
    """Promote a standby to primary, in a new epoch.

    Records that the former primary had not yet shipped are in its own file only. The former primary
    stops when it hears of the promotion, and is refused when it starts again.
    """
    from millstream.engine.place import is_address
    from millstream.remote.address import parse_address
    from millstream.remote.http import BrokenHttp, ask

    standby = url or place.store
    if not is_address(standby):
        raise typer.BadParameter("a standby is a server: name its address, http://HOST:PORT")
    address = parse_address(standby, token=place.token(), ca=place.ca)
    try:
        answer = ask(address, "POST", "/cluster/promote", timeout_s=TIMEOUT_S)
    except BrokenHttp as error:
        raise CannotOpen(f"cannot reach {address.shown}: {error}", path=address.shown) from None
    if not answer.is_good:
        raise Conflict(answer.detail)
    promoted: dict[str, Any] = msgspec.json.decode(answer.body)
    shown = f"{safe(promoted['node'])} is the primary now, in epoch {promoted['epoch']}"
    return Printed(promoted, shown)
