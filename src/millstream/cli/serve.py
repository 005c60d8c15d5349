"""`millstream serve`: a store behind one port, until it is told to stop."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath
from millstream.cli.options import takes

if TYPE_CHECKING:
    from millstream.server.serving import Serving
    from millstream.server.settings import Settings


class Auth(StrEnum):
    """Whether tokens are needed."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True)
class Bounds:
    """How much one client may ask of a server."""

    body_max: Annotated[str, typer.Option(metavar="SIZE", help="The body of one request.")] = (
        "64MiB"
    )
    head_max: Annotated[str, typer.Option(metavar="SIZE", help="The head of one request.")] = (
        "64KiB"
    )
    frame_max: Annotated[str, typer.Option(metavar="SIZE", help="One frame of the socket.")] = (
        "64MiB"
    )
    unsent_max: Annotated[
        str, typer.Option(metavar="SIZE", help="Answers that wait for a slow reader.")
    ] = "32MiB"
    connections_max: Annotated[
        int, typer.Option(metavar="N", min=1, help="Connections at once.")
    ] = 10_000
    in_flight_max: Annotated[
        int, typer.Option(metavar="N", min=1, help="Requests of one socket without an answer.")
    ] = 256
    token_in_flight_max: Annotated[
        int, typer.Option(metavar="N", min=1, help="Requests of one token at once.")
    ] = 2_500
    claims_max: Annotated[
        int, typer.Option(metavar="N", min=1, help="Messages that one client may have claimed.")
    ] = 100_000
    per_token_max: Annotated[
        int, typer.Option(metavar="N", min=1, help="Connections of one token at once.")
    ] = 5_000
    rate: Annotated[
        float,
        typer.Option(metavar="N", min=0, help="Requests per second of one token; 0: any number."),
    ] = 0.0
    wait_max: Annotated[
        str, typer.Option(metavar="DURATION", help="How long a request may wait for news.")
    ] = "60s"
    stop_within: Annotated[
        str, typer.Option(metavar="DURATION", help="Once told to stop, be gone by then.")
    ] = "5s"


@takes(Bounds)
def serve(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[PATH]", help="The store's file.", show_default="--store"),
    ] = None,
    store: StorePath = Path(DEFAULT_STORE),
    host: Annotated[
        str, typer.Option(metavar="HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", metavar="N", min=0, max=65_535, help="0: any free one.")
    ] = 8080,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM file; with --key, TLS only.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key, PEM.")] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Whose pages may connect too: https://example.org."),
    ] = None,
    auth: Annotated[
        Auth,
        typer.Option(help="Whether tokens are needed; auto: unless only this machine can connect."),
    ] = Auth.AUTO,
    file_mode: Annotated[
        str, typer.Option(metavar="MODE", help="Of a new store: 600, or 640 for a group.")
    ] = "600",
    log_requests: Annotated[
        bool, typer.Option("--log-requests", help="A line of JSON per request, on stderr.")
    ] = False,
    json: AsJson = False,
    *,
    bounds: Bounds,
) -> None:
    """Serve a store on one port: REST, a streaming socket, metrics. Makes the store if need be.

    On loopback without tokens, every client may do everything; elsewhere tokens are needed:
    `millstream token create` makes one. SIGTERM or Ctrl-C: requests finish, then it ends.
    """
    import sys

    from msgspec.structs import replace

    try:
        from millstream.server import journal
        from millstream.server.serving import Serving
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    settings = replace(
        _settings(bounds),
        host=host,
        port=port,
        certificate=str(certificate or ""),
        key=str(key or ""),
        origins=tuple(origin or ()),
        auth=auth.value,
        log_requests=log_requests,
    )
    serving = Serving(path or store, settings, file_mode=_mode(file_mode))
    journal.write_to(sys.stderr, requests=log_requests)

    def ready() -> None:
        _announce(serving, path or store, json=json)
        # What is here now stays: without it in the way, collecting garbage takes half as long.
        gc.collect()
        gc.freeze()

    serving.run(on_ready=ready, with_signals=True)


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise typer.BadParameter(f"--file-mode is octal, such as 640, not {text!r}") from None


def _settings(bounds: Bounds) -> Settings:
    from millstream.cli.arguments import parse_duration, parse_size
    from millstream.server.settings import Settings

    return Settings(
        body_bytes_max=parse_size(bounds.body_max),
        head_bytes_max=parse_size(bounds.head_max),
        frame_bytes_max=parse_size(bounds.frame_max),
        send_bytes_max=parse_size(bounds.unsent_max),
        connections_max=bounds.connections_max,
        requests_in_flight_max=bounds.in_flight_max,
        connections_per_token_max=bounds.per_token_max,
        requests_per_token_max=bounds.token_in_flight_max,
        claims_open_max=bounds.claims_max,
        requests_per_second=bounds.rate,
        wait_ms_max=round(parse_duration(bounds.wait_max) * 1000),
        stop_s=parse_duration(bounds.stop_within),
    )


def _announce(serving: Serving, path: Path, *, json: bool) -> None:
    import sys

    from millstream.cli import display

    places = {
        "rest": serving.url,
        "socket": serving.socket_url,
        "docs": f"{serving.url}/docs",
        "metrics": f"{serving.url}/metrics",
        "health": f"{serving.url}/health",
    }
    if json:
        display.say_json({"store": str(path), **places})
    else:
        display.say(f"serving {display.safe(str(path))}")
        display.say_facts(places.items())
    sys.stdout.flush()  # the reader of these lines may be behind a pipe


def _missing(error: ModuleNotFoundError) -> typer.BadParameter:
    return typer.BadParameter(
        f"the server needs the package {error.name}: pip install 'millstream[server]'"
    )
