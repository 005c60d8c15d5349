"""Settings of a server: every bound and switch, with its default and its reason."""

from __future__ import annotations

import re
from typing import Literal, get_args

from msgspec import Struct

from millstream.backup.keep import parse_keep
from millstream.engine.scrub import check_share
from millstream.errors import InvalidInput
from millstream.server.journal import levels_of

ProfileName = Literal["balanced", "low-latency", "high-throughput"]
PROFILE_NAMES: tuple[str, ...] = get_args(ProfileName)

KiB = 1024
MiB = 1024 * KiB

LOG_FORMATS = ("auto", "text", "json")

RETENTION_S_MAX = 100 * 366 * 24 * 3600
"""The longest retention in seconds; a log that keeps records for longer has no retention."""


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of a server, as the command line and `millstream.toml` set them."""

    host: str = "127.0.0.1"
    port: int = 8080
    """The port of HTTP; 0 means any free port."""

    certificate: str = ""
    key: str = ""
    """PEM files; with both, the server speaks TLS only."""

    auth: Literal["auto", "on", "off"] = "auto"
    """Whether clients need tokens; `auto` asks for tokens unless only this machine can connect."""

    origins: tuple[str, ...] = ()
    """Origins whose pages may connect, beside the pages of the server."""

    body_bytes_max: int = 64 * MiB
    """The size of a request's body; a batch of the largest permitted size fits."""

    head_bytes_max: int = 64 * KiB
    """The size of a request's headers."""

    frame_bytes_max: int = 64 * MiB
    """Bytes of a socket's frame."""

    connections_max: int = 10_000
    connections_per_token_max: int = 5_000
    """Requests and sockets that one token may have open."""

    requests_in_flight_max: int = 256
    """Requests of one socket that have no answer yet: the credit of the client."""

    requests_per_token_max: int = 2_500
    """Running requests of one token: a quarter of the operations that may wait for a commit."""

    claims_open_max: int = 100_000
    """Messages that one client may have in flight at once."""

    requests_per_second: float = 0.0
    """Requests per second of one token; 0 is unlimited."""

    wait_ms_max: int = 60_000
    """How long a request may wait for something to happen; clients ask again."""

    send_bytes_max: int = 32 * MiB
    """Bytes of answers that wait for a slow reader; beyond, the server cuts the connection."""

    stop_s: float = 5.0
    """How long a server that is told to stop lets requests finish."""

    log_requests: bool = False
    """One line of JSON per request, to the logger `millstream.access`."""

    log_format: Literal["auto", "text", "json"] = "auto"
    """The form of log lines; `auto` writes text to a terminal, and lines of JSON elsewhere."""

    log_levels: tuple[str, ...] = ()
    """The least level of log lines: `info` for all parts, `cluster=debug` for one part."""

    slow_ms: int = 1_000
    """A command that takes this long is logged with the reason of its wait; 0: no command is."""

    instance: str = ""
    """The name of this server among the servers of one store; empty: HOST:PORT."""

    instance_lease_s: float = 30.0
    """How long the server counts as alive after a heartbeat; it sends three heartbeats per lease."""

    logs_retention_s: float = 0.0
    """The retention of logs that this server creates, unless the log has its own; 0: without end."""

    rooms_profile: ProfileName = "balanced"
    """How rooms weigh latency against load."""

    rooms_across: bool = True
    """Whether listeners hear messages of other processes too, not only messages of this server."""

    rooms_sweep_s: float = 30.0
    """How often expired messages of rooms are removed."""

    rooms_poll_s: float = 0.0
    """How long messages of a room gather before the server fetches them; 0: by the profile."""

    rooms_batch: int = 100
    """Messages of a room that are fetched at once: a long backlog does not hold up other rooms."""

    queue_age_s_max: float = 0.0
    """A message that waits for longer makes the server's health a warning; 0 is any time."""

    scrub_share: float = 0.01
    """The share of time for which the background reads all rows of a file again; 0 turns it off."""

    backup_place: str = ""
    """The folder or bucket of the backups that the server makes; empty: none."""

    backup_every_s: float = 3_600.0
    """How often the server adds a point to its backup."""

    backup_keep: str = ""
    """Which points stay: an age such as 7d, or a number; empty: all."""

    backup_follow: bool = False
    """Whether every commit goes to the backup, about a second after it was made."""

    sqs_account: str = "123456789012"
    """The account of SQS queues that have no other account, as AWS writes accounts."""

    sqs_region: str = "us-east-1"
    """The region of SQS whose queues have plain names, and of requests that name no region."""

    def check(self) -> None:
        """Refuse settings that open a store to every client of the network, or are out of range."""
        if self.rooms_profile not in PROFILE_NAMES:
            raise InvalidInput(
                f"rooms_profile is {', '.join(PROFILE_NAMES)}, not {self.rooms_profile!r}"
            )
        if (
            not (self.sqs_account.isascii() and self.sqs_account.isdigit())
            or len(self.sqs_account) != 12
        ):
            raise InvalidInput(f"sqs_account has twelve digits, not {self.sqs_account!r}")
        if not re.fullmatch(r"[a-z0-9-]{1,64}", self.sqs_region):
            raise InvalidInput(
                f"sqs_region is the name of a region, such as us-east-1, not {self.sqs_region!r}"
            )
        if not 0.1 <= self.instance_lease_s <= 3_600:
            raise InvalidInput(
                f"instance_lease_s is from 0.1 to 3,600 seconds, not {self.instance_lease_s:g}"
            )
        if not 0 <= self.logs_retention_s <= RETENTION_S_MAX:
            raise InvalidInput(
                f"logs_retention_s is from 0 (without end) to {RETENTION_S_MAX:,} seconds, not "
                f"{self.logs_retention_s:g}"
            )
        if not 0.1 <= self.rooms_sweep_s <= 3_600:
            raise InvalidInput(
                f"rooms_sweep_s is from 0.1 to 3,600 seconds, not {self.rooms_sweep_s:g}"
            )
        if not 0 <= self.rooms_poll_s <= 60:
            raise InvalidInput(f"rooms_poll_s is from 0 to 60 seconds, not {self.rooms_poll_s:g}")
        if not 1 <= self.rooms_batch <= 10_000:
            raise InvalidInput(f"rooms_batch is from 1 to 10,000 messages, not {self.rooms_batch}")
        check_share(self.scrub_share)
        if not 1 <= self.backup_every_s <= RETENTION_S_MAX:
            raise InvalidInput(
                f"backup_every_s is from 1 to {RETENTION_S_MAX:,} seconds, not {self.backup_every_s:g}"
            )
        if self.backup_keep:
            parse_keep(self.backup_keep)
        if self.log_format not in LOG_FORMATS:
            raise InvalidInput(
                f"log_format is {', '.join(LOG_FORMATS)}, not {self.log_format!r:.100}"
            )
        levels_of(self.log_levels)
        if self.auth == "off" and not self.is_loopback():
            raise InvalidInput(
                f"a server that others can reach at {self.host} needs tokens: leave auth on, and "
                "make one with `millstream token create`; or serve on 127.0.0.1"
            )

    def needs_tokens(self) -> bool:
        """Whether clients must show a token."""
        return self.auth == "on" or (self.auth == "auto" and not self.is_loopback())

    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server; tokens are optional then."""
        return self.host in ("127.0.0.1", "::1", "localhost")
