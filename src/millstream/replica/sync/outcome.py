"""The outcome of a sync: its options, the figures of each log, and the progress while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.log.model.names import check_text
from millstream.record import SetBackReader

Direction = Literal["both", "pull", "push"]
OnFork = Literal["refuse", "longest", "rebase"]


class Options(Struct, frozen=True, kw_only=True):
    """How two stores are to converge."""

    direction: Direction = "both"
    logs: str = "*"
    """A name, or a pattern with `*` and `?`."""
    on_fork: OnFork = "refuse"
    compress: bool = False
    truncate: bool = True
    """Whether truncations travel."""

    def check(self) -> None:
        """Refuse unknown values."""
        for label, value, choices in (
            ("direction", self.direction, ("both", "pull", "push")),
            ("on_fork", self.on_fork, ("refuse", "longest", "rebase")),
        ):
            if value not in choices:
                raise InvalidInput(f"{label} is {', '.join(choices)}; not {value!r}")
        if not check_text("a pattern of logs", self.logs):
            raise InvalidInput(f"logs is a name or a pattern such as 'device/*', not {self.logs!r}")


class SetBack(SetBackReader, frozen=True, kw_only=True):
    """A reader that was set back, and its store."""

    store: str


class LogOutcome(Struct, kw_only=True):
    """The effect of a sync on one log."""

    log: str
    pulled: int = 0
    """Records that came to the local store."""
    pushed: int = 0
    """Records that went to the peer."""
    bytes: int = 0
    """Bytes of the exchanged records on the wire."""
    truncated: int = 0
    """Records that a store forgot because the peer had truncated its copy."""
    metadata: int = 0
    """Metadata entries that a store took over."""
    owner: str | None = None
    """The owner, if a store learned of a new owner."""
    set_aside: list[str] = []
    """Forks that hold the records of losing tails; no record is lost."""
    set_back: list[SetBack] = []
    """Cursors and queues that had passed the start of a tail that was set aside, and were set back.
    """
    error: str | None = None
    """Why the log was left as it was; None if the sync succeeded."""

    def changed(self) -> bool:
        """Whether the sync changed anything."""
        return self != LogOutcome(log=self.log)


class LeftBehind(Struct, frozen=True, kw_only=True):
    """Entities of one kind that a store holds and that a sync has not carried."""

    store: str
    """The id of the store."""
    kind: str
    """`queue`, `cursor`, `room`, `token` or `table` of the application; `unknown` if the store does
    not say."""
    count: int = 0
    names: list[str] = []
    """The first names; empty for tokens."""
    messages: int = 0
    """Messages of all queues that wait, are in flight, or have failed."""


class Outcome(Struct, kw_only=True):
    """The effect of a sync on all logs."""

    peer: str
    """The peer's store id."""
    logs: list[LogOutcome] = []
    """Logs with something to report; equal logs are only counted."""
    looked_at: int = 0
    """The number of compared logs."""
    pulled: int = 0
    pushed: int = 0
    bytes: int = 0
    """Traffic to and from the peer; between two files, the traffic that two machines would have."""
    seconds: float = 0.0
    left_behind: list[LeftBehind] = []
    """Entities of the giving stores that no sync carries; when following, as of the first round."""

    @property
    def failed(self) -> list[LogOutcome]:
        """The logs that could not be brought together."""
        return [log for log in self.logs if log.error is not None]


class Progress(Struct, frozen=True):
    """How far a sync has come with one log."""

    log: str
    direction: Literal["pull", "push"]
    done: int
    """Records sent, of the records that were missing when the sync began."""
    total: int
    bytes: int
    """Bytes of the log's records that were sent until now."""


Tell = Callable[[Progress], None]
