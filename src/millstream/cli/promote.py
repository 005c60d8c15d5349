"""`millstream promote`: a standby becomes the primary."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

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
    """Make a standby the primary, in a new epoch.

    What the former primary had not shipped is in its own file alone. It stops when it hears of this,
    and is refused when it is started again.
    """
    from millstream.engine.place import is_address
    from millstream.remote.address import SOCKET_PATH, parse_address

    where = url or place.store
    if not is_address(where):
        raise typer.BadParameter("a standby is a server: name its address, http://HOST:PORT")
    address = parse_address(where, token=place.token(), ca=place.ca)
    base = "http" + address.socket_url.removeprefix("ws").removesuffix(SOCKET_PATH)
    request = Request(f"{base}/cluster/promote", data=b"", headers=address.headers(), method="POST")
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=address.tls))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            told: dict[str, Any] = json.load(answer)
    except HTTPError as error:
        raise Conflict(_detail(error)) from None
    except (OSError, HTTPException) as error:
        raise CannotOpen(f"cannot reach {address.shown}: {error}", path=address.shown) from None
    shown = f"{safe(told['node'])} is the primary now, in epoch {told['epoch']}"
    return Printed(told, shown)


def _detail(error: HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError):
        return f"the server answered {error.code}"
