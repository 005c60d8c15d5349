"""`millstream token`: who may use a server of this store, and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import asdict

from millstream import Millstream
from millstream.cli.arguments import duration
from millstream.cli.command import Consent, command
from millstream.cli.display import Printed, PrintedLine, Table, safe, when
from millstream.clock import SystemClock
from millstream.record import moment, to_ms

if TYPE_CHECKING:
    from millstream.server.auth.register import Token

token = typer.Typer(no_args_is_help=True, help="Who may use a server of this store.")


@command(
    token,
    "token create billing --allow 'log:write:orders*' --allow store:read --expires 90d",
    create=True,
    file_only=True,
)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is known by.")],
    allow: Annotated[
        list[str],
        typer.Option(
            metavar="PERMISSION",
            help="NOUN:ACTION or NOUN:ACTION:PATTERN, such as log:write:orders*, queue:admin:mail, "
            "store:read or *:admin. Nouns: log, queue, room, replica, store, *. Actions: read, write, "
            "admin; each includes those before it. May be repeated.",
        ),
    ],
    ms: Millstream,
    expires: Annotated[
        float | None, duration("How long it is good for, such as 30d.", default="without end")
    ] = None,
) -> Printed:
    """Create a token; its secret is shown once."""
    from millstream.server.auth.tokens import create_token

    expires_ms = None if expires is None else to_ms(expires)
    made, text = create_token(ms, name, allow, expires_ms=expires_ms)
    told = "keep it: it is shown only this once, and the store has no copy"
    return Printed({**_plain(made), "token": text}, text, PrintedLine(told, note=True))


@command(token, "token list", name="list", file_only=True)
def list_tokens(ms: Millstream) -> Printed:
    """List the tokens; never their secrets."""
    from millstream.server.auth.register import Registrar

    found = Registrar(ms).tokens()
    now_ms = SystemClock().wall_ms()
    rows = [
        (
            one.name,
            one.id,
            " ".join(one.permissions),
            when(one.created),
            _ending(one, now_ms),
        )
        for one in found
    ]
    return Printed(
        [_plain(one) for one in found],
        Table(
            ("token", "id", "may", "created", "expires"),
            rows,
            none="no tokens; `millstream token create` creates one",
        ),
    )


@command(token, "token revoke billing --yes", file_only=True)
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name or id.")],
    ms: Millstream,
    consent: Consent,
) -> Printed:
    """Revoke a token; running servers refuse it within a second."""
    from millstream.server.auth.register import Registrar

    consent.ask(f"Revoke the token {name!r}? Clients that use it are shut out.")
    gone = Registrar(ms).revoke(name)
    return Printed(
        {"token": gone.name, "id": gone.id, "revoked": True}, f"{safe(gone.name)} revoked"
    )


def _ending(one: Token, now_ms: int) -> Any:
    if one.expires is None:
        return "never"
    return "expired" if one.has_expired(now_ms) else moment(one.expires)


def _plain(one: Token) -> dict[str, Any]:
    return {name: fact for name, fact in asdict(one).items() if name != "digest"}
