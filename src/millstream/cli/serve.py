"""`millstream serve`: serve a store on one port, until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from millstream.cli.cluster_options import NodePlace, member_of, pair_of
from millstream.cli.command import AsJson
from millstream.cli.declared import Declared, Fields
from millstream.cli.display import FactSheet, Printed, safe
from millstream.cli.events import report_event
from millstream.cli.place import StorePlace
from millstream.cli.server_lease import leased
from millstream.engine.place import is_bucket
from millstream.errors import Fenced
from millstream.jobs.processes.service_manager import ServiceManager
from millstream.remote.address import SOCKET_PATH
from millstream.server.settings import Settings

if TYPE_CHECKING:
    from millstream.server.serving import Serving

_HELPS = {
    "host": "HOST: the address to listen on.",
    "certificate": "FILE: PEM file of the certificate; with --key, only TLS is served.",
    "key": "FILE: PEM file of the certificate's key.",
    "auth": "WHEN: whether tokens are required: on, off, or auto (unless only this machine can connect).",
    "origins": "ORIGIN: allow pages of this origin, such as https://example.org; may be repeated.",
    "log_requests": "write a line per request to stderr.",
    "log_format": "FORM: of log lines: text, json, or auto (text on a terminal, else json).",
    "log_levels": "LEVEL: least level of log lines: info, or of one part: cluster=debug; may be repeated.",
    "slow_ms": "log commands that take longer, with the reason of their wait; 0: none.",
    "body_bytes_max": "the maximum size of a request's body.",
    "head_bytes_max": "the maximum size of a request's head.",
    "frame_bytes_max": "the maximum size of a frame of the socket.",
    "send_bytes_max": "the maximum of answers that wait for a slow reader.",
    "connections_max": "the maximum number of connections.",
    "connections_per_token_max": "the maximum number of connections of one token.",
    "requests_in_flight_max": "the maximum number of unanswered requests of one socket.",
    "requests_per_token_max": "the maximum number of concurrent requests of one token.",
    "requests_per_second": "the rate limit of one token; 0: unlimited.",
    "claims_open_max": "the maximum number of messages that one client may have claimed.",
    "wait_ms_max": "how long a request may wait for new records or messages.",
    "queue_age_s_max": "the health is a warning if a message has waited longer; 0: unlimited.",
    "scrub_share": "SHARE: of time, for reading all rows again to find damage; 0: no scrub.",
    "backup_place": "PLACE: a folder or a bucket for backups that the server makes.",
    "backup_every_s": "how often a point is added to the backup.",
    "backup_keep": "AGE|N: delete points that no time of an age such as 7d needs, or all but the newest N.",
    "backup_follow": "store every commit about a second after it was made.",
    "instance": "NAME: the server's name among servers that share the store; default: HOST:PORT.",
    "instance_lease_s": "how long the server counts as alive after its last sign of life.",
    "logs_retention_s": "how long new logs keep records by default; 0: unlimited.",
    "rooms_profile": "NAME: how rooms push: balanced, low-latency or high-throughput.",
    "rooms_across": "push messages that other processes sent, too.",
    "rooms_sweep_s": "how often expired messages of rooms are removed.",
    "rooms_poll_s": "how long messages of a room gather before they are fetched; 0: the profile's value.",
    "rooms_batch": "the maximum number of messages of a room per fetch.",
    "sqs_account": "ACCOUNT: the account of SQS queues, as twelve digits.",
    "sqs_region": "REGION: of the SQS queues whose names are plain in the store.",
    "stop_s": "how long stopping may take.",
}
SERVER_SETTINGS = Declared(Settings, _HELPS)


@dataclass(frozen=True)
class ServerOptions:
    """The options of the program that serves, beside the settings of the server."""

    file_mode: Annotated[
        str, typer.Option(metavar="MODE", help="The mode of a new file: 600, or 640 for a group.")
    ] = "600"
    standby: Annotated[
        bool,
        typer.Option(
            "--standby", help="For a bucket: wait, and take over when its server is gone."
        ),
    ] = False
    on_fenced: Annotated[
        str,
        typer.Option(metavar="WHAT", help="When another server took the bucket: exit, or follow."),
    ] = "exit"
    processes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=256,
            help="Server processes that share the port and the file. SIGHUP restarts one after the "
            "other.",
        ),
    ] = 1


def serve(
    place: StorePlace,
    fields: Annotated[Fields, SERVER_SETTINGS],
    cluster: NodePlace,
    options: ServerOptions,
    path: Annotated[
        str | None,
        typer.Argument(metavar="[PATH]", help="The store's file.", show_default="--store"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            "-p",
            metavar="N",
            min=0,
            max=65_535,
            help="The port; 0: any free port.",
            show_default="8080, or from --peers",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Serve a store on one port: REST, a streaming socket, metrics. Creates the store if needed.

    On loopback without tokens, every client may do everything. Elsewhere tokens are required:
    `millstream token create` creates one. SIGTERM or Ctrl-C lets requests finish, then stops.
    """
    try:
        from millstream.server.listen.activation import inherited_socket
        from millstream.server.processes.place import take_place
        from millstream.server.serving import Serving
    except ModuleNotFoundError as error:
        raise typer.BadParameter(
            f"the server needs the package {error.name}: pip install 'millstream[server]'"
        ) from error
    file = place.home("serve", path)
    settings = cluster.settings(port, fields)
    if settings.auth not in ("auto", "on", "off"):
        raise typer.BadParameter(f"--auth must be auto, on or off, not {settings.auth!r}")
    _start_journal(settings)
    mode = _mode(options.file_mode)
    member = take_place()
    inherited = inherited_socket() if member is None else None
    settings = settings if inherited is None else _bound_to(settings, inherited)
    if options.processes > 1 and member is None:
        _check_alone(cluster, file)
        settings.check()
        raise typer.Exit(
            _serve_group(settings, file, inherited, count=options.processes, json=json)
        )
    pair = pair_of(cluster, settings, file, file_mode=mode)
    make = partial(Serving, file, settings, file_mode=mode, place=member)

    def served() -> bool:
        serving: Serving | None = None
        with (
            leased(
                str(file), lambda: serving, standby=options.standby, on_fenced=options.on_fenced
            ) as lease,
            member_of(cluster.node_plan(settings), file, file_mode=mode) as node,
        ):
            serving = make(listening=_duplicate(inherited), **lease, **node, **pair)
            show = partial(_show, serving.url, file, json=json)
            ready = show if member is None else member.tell_ready
            return _serve(serving, ready, standby=options.standby)

    while not served():
        pass  # a standby that lost its lease before it served waits again


def _bound_to(settings: Settings, listening: socket.socket) -> Settings:
    """Return the settings with the address of a socket, which decides whether tokens are needed."""
    host, port, *_ = listening.getsockname()
    return replace(settings, host=host, port=port)


def _duplicate(listening: socket.socket | None) -> socket.socket | None:
    """Return a second handle of a socket, which a server closes when it ends."""
    return None if listening is None else listening.dup()


def _check_alone(cluster: NodePlace, file: Path | str) -> None:
    """Refuse several processes where only one process may write."""
    if cluster.is_node or is_bucket(str(file)):
        raise typer.BadParameter(
            "--processes is for a store in a file: a bucket and a node of a cluster have one writer; "
            "start more nodes, or standbys, instead"
        )


def _serve_group(
    settings: Settings,
    file: Path | str,
    inherited: socket.socket | None,
    *,
    count: int,
    json: bool,
) -> int:
    """Serve with several processes until stopped; return the exit code."""
    from millstream.server.listen.ports import listen
    from millstream.server.listen.tls import tls_context
    from millstream.server.processes.group import ServerGroup
    from millstream.server.serving import url_of

    tls = tls_context(settings)
    address: list[str] = []
    if inherited is not None:  # the processes must know who can reach them: tokens depend on it
        address = ["--host", settings.host, "--port", str(settings.port)]
    with inherited or listen(settings.host, settings.port) as listening:
        url = url_of(settings.host, listening.getsockname()[1], is_tls=tls is not None)
        group = ServerGroup(
            [sys.executable, "-m", "millstream", *sys.argv[1:], *address],
            listening,
            count=count,
            stop_s=settings.stop_s,
            on_ready=partial(_show, url, file, json=json, processes=count),
        )
        return group.run()


def _show(url: str, file: Path | str, *, json: bool, processes: int = 1) -> None:
    """Print where the server is reached, and report to the service manager."""
    places: dict[str, Any] = {
        "rest": url,
        "socket": f"ws{url.removeprefix('http')}{SOCKET_PATH}",
        "docs": f"{url}/docs",
        "metrics": f"{url}/metrics",
        "health": f"{url}/health",
        "dashboard": f"{url}/",
    }
    if processes > 1:
        places["processes"] = processes
    shown = f"serving {safe(str(file))}", FactSheet(list(places.items()))
    Printed({"store": str(file), **places}, *shown).show(as_json=json)
    sys.stdout.flush()  # these lines may go through a pipe
    ServiceReports().begin()


def _serve(serving: Serving, on_ready: Callable[[], None], *, standby: bool) -> bool:
    """Serve until stopped; False if a standby lost its lease before it served."""
    has_served = False

    def ready() -> None:
        nonlocal has_served
        has_served = True
        on_ready()
        # These objects live as long as the server. Frozen, they halve the time of a collection.
        gc.collect()
        gc.freeze()

    try:
        serving.run(on_ready=ready, with_signals=True)
    except Fenced:
        if has_served or not standby:
            raise
        report_event("standby: another server was faster")
        return False
    return True


def _start_journal(settings: Settings) -> None:
    """Check the settings, and write log lines to standard error from now on."""
    from millstream.server import journal

    settings.check()
    journal.write_to(
        sys.stderr,
        requests=settings.log_requests,
        form=settings.log_format,
        levels=settings.log_levels,
    )


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise typer.BadParameter(f"--file-mode must be octal, such as 640, not {text!r}") from None


class ServiceReports:
    """Reports from an event loop: a loop that hangs reports nothing, and the service is restarted."""

    def __init__(self, manager: ServiceManager | None = None) -> None:
        self._manager = ServiceManager() if manager is None else manager

    def begin(self) -> None:
        """Report that the server is ready, then report in time until the running loop ends."""
        self._manager.notify("READY=1")
        if self._manager.watchdog_s is not None:
            self._report(asyncio.get_running_loop(), self._manager.watchdog_s)

    def _report(self, loop: asyncio.AbstractEventLoop, interval_s: float) -> None:
        self._manager.notify("WATCHDOG=1")
        loop.call_later(interval_s, self._report, loop, interval_s)
