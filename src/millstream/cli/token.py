"""`millstream token`: who may use a server of this store, and for what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, Yes, opened
from millstream.cli.confirm import confirm

if TYPE_CHECKING:
    from millstream.server.auth.register import Token

token = typer.Typer(no_args_is_help=True, help="Who may use a server of this store.")


@token.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is known by.")],
    allow: Annotated[
        list[str],
        typer.Option(
            metavar="PERMISSION",
            help="NOUN:ACTION or NOUN:ACTION:PATTERN, such as log:write:orders*, queue:admin:mail, "
            "store:read or *:admin. Nouns: log, queue, replica, store, *. Actions: read, write, admin; "
            "each includes those before it. May be repeated.",
        ),
    ],
    store: StorePath = Path(DEFAULT_STORE),
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long it is good for, such as 30d.",
            show_default="without end",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Make a token; its secret is shown once."""
    from millstream.cli import display
    from millstream.cli.arguments import parse_duration
    from millstream.record import to_ms
    from millstream.server.auth.tokens import create_token

    expires_ms = None if expires is None else to_ms(parse_duration(expires))
    with opened(store, create=True) as ms:
        made, text = create_token(ms, name, allow, expires_ms=expires_ms)
    if json:
        display.say_json({**_plain(made), "token": text})
        return
    display.say(text)
    display.note("keep it: it is shown only this once, and the store has no copy")


@token.command("list")
def list_(store: StorePath = Path(DEFAULT_STORE), json: AsJson = False) -> None:
    """List the tokens; never their secrets."""
    from millstream.cli import display
    from millstream.clock import SystemClock
    from millstream.server.auth.tokens import list_tokens

    with opened(store) as ms:
        found = list_tokens(ms)
    if json:
        display.say_json([_plain(one) for one in found])
        return
    if not found:
        display.note("no tokens; `millstream token create` makes one")
        return
    now_ms = SystemClock().wall_ms()
    display.say_table(
        ("token", "id", "may", "created", "expires"),
        [
            (
                display.safe(one.name),
                one.id,
                display.safe(" ".join(str(permission) for permission in one.permissions)),
                display.when(one.created),
                _ending(one, now_ms),
            )
            for one in found
        ],
    )


@token.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name or id.")],
    store: StorePath = Path(DEFAULT_STORE),
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Revoke a token; running servers refuse it within a second."""
    from millstream.cli import display
    from millstream.server.auth.tokens import revoke_token

    with opened(store) as ms:
        confirm(f"Revoke the token {name!r}? Clients that use it are shut out.", yes=yes)
        gone = revoke_token(ms, name)
    if json:
        display.say_json({"token": gone.name, "id": gone.id, "revoked": True})
    else:
        display.say(f"{display.safe(gone.name)} is revoked")


def _ending(one: Token, now_ms: int) -> str:
    from millstream.cli import display

    if one.expires is None:
        return "never"
    return "expired" if one.has_expired(now_ms) else display.time_of(one.expires)


def _plain(one: Token) -> dict[str, Any]:
    return {
        "name": one.name,
        "id": one.id,
        "permissions": [str(permission) for permission in one.permissions],
        "created": one.created,
        "expires": one.expires,
    }
