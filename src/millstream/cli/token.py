"""`millstream token`: create, list and revoke the tokens of this store's servers."""

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

_SECRETS = ("digest", "sealed")  # what the store alone uses

token = typer.Typer(no_args_is_help=True, help="Manage the tokens of a store's servers.")


@command(
    token,
    "token create billing --allow 'log:write:orders*' --allow store:read --expires 90d",
    "token create operator --allow admin",
    create=True,
    file_only=True,
)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")],
    allow: Annotated[
        list[str],
        typer.Option(
            metavar="PERMISSION",
            help="admin for everything; or NOUN:ACTION or NOUN:ACTION:PATTERN, such as "
            "log:write:orders*, queue:admin:mail, store:read or *:admin. Nouns: log, queue, job, room, "
            "replica, store, *. Actions: read, write, admin; each includes the ones before it. For "
            "queues also put; store:backup is a right of its own. May be repeated.",
        ),
    ],
    ms: Millstream,
    expires: Annotated[
        float | None, duration("How long it is valid, such as 30d.", default="unlimited")
    ] = None,
) -> Printed:
    """Create a token; its secret is shown once."""
    from millstream.server.auth.tokens import create_token

    expires_ms = None if expires is None else to_ms(expires)
    token_made, text = create_token(ms, name, allow, expires_ms=expires_ms)
    advice = "keep it: it is shown only now"
    return Printed({**_plain(token_made), "token": text}, text, PrintedLine(advice, note=True))


@command(token, "token list", name="list", file_only=True)
def list_tokens(ms: Millstream) -> Printed:
    """List the tokens, without their secrets."""
    from millstream.server.auth.register import Registrar

    tokens = Registrar(ms).tokens()
    now_ms = SystemClock().wall_ms()
    rows = [
        (
            entry.name,
            entry.id,
            " ".join(entry.permissions),
            when(entry.created),
            _ending(entry, now_ms),
        )
        for entry in tokens
    ]
    return Printed(
        [_plain(entry) for entry in tokens],
        Table(
            ("token", "id", "may", "created", "expires"),
            rows,
            none="no tokens; `millstream token create` creates one",
        ),
    )


@command(token, "token revoke billing --yes", file_only=True)
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The token's name or id.")],
    ms: Millstream,
    consent: Consent,
) -> Printed:
    """Revoke a token; running servers refuse it within a second."""
    from millstream.server.auth.register import Registrar

    consent.ask(f"Revoke the token {name!r}? Its clients lose access.")
    revoked = Registrar(ms).revoke(name)
    return Printed(
        {"token": revoked.name, "id": revoked.id, "revoked": True}, f"{safe(revoked.name)} revoked"
    )


def _ending(entry: Token, now_ms: int) -> Any:
    if entry.expires is None:
        return "never"
    return "expired" if entry.has_expired(now_ms) else moment(entry.expires)


def _plain(entry: Token) -> dict[str, Any]:
    return {name: fact for name, fact in asdict(entry).items() if name not in _SECRETS}
