"""What came of a sync: figures by log, and what is told while it runs."""

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
        """Refuse what is not offered."""
        for what, value, known in (
            ("direction", self.direction, ("both", "pull", "push")),
            ("on_fork", self.on_fork, ("refuse", "longest", "rebase")),
        ):
            if value not in known:
                raise InvalidInput(f"{what} is {', '.join(known)}; not {value!r}")
        if not check_text("a pattern of logs", self.logs):
            raise InvalidInput(f"logs is a name or a pattern such as 'device/*', not {self.logs!r}")


class SetBack(SetBackReader, frozen=True, kw_only=True):
    """A reader that went back, and in which store."""

    store: str


class LogOutcome(Struct, kw_only=True):
    """What a sync did to one log."""

    log: str
    pulled: int = 0
    """Records that came here."""
    pushed: int = 0
    """Records that went to the peer."""
    bytes: int = 0
    """Bytes of these records, as they travelled."""
    truncated: int = 0
    """Records that one side forgot because the other one had."""
    metadata: int = 0
    """Entries that one side took over."""
    owner: str | None = None
    """The owner, if one side learned of it now."""
    set_aside: list[str] = []
    """Forks that hold what did not fit; none of it is lost."""
    set_back: list[SetBack] = []
    """Cursors and queues that had passed what was set aside, and went back."""
    error: str | None = None
    """Why this log was left as it was, from there on."""

    def changed(self) -> bool:
        """Whether anything came of it."""
        return self != LogOutcome(log=self.log)


class LeftBehind(Struct, frozen=True, kw_only=True):
    """Things of one kind that a store holds and that a sync has not carried."""

    store: str
    """The id of the store that has them."""
    kind: str
    """`queue`, `cursor`, `room`, `token` or `table`, of the application; `unknown`: it does not say."""
    count: int = 0
    names: list[str] = []
    """The first of them; none of tokens."""
    messages: int = 0
    """Of all queues: those that wait, are in flight, or have failed."""


class Outcome(Struct, kw_only=True):
    """What a sync did."""

    peer: str
    """The peer's store id."""
    logs: list[LogOutcome] = []
    """Logs with something to report; those that were the same on both sides are only counted."""
    looked_at: int = 0
    """Logs that were compared."""
    pulled: int = 0
    pushed: int = 0
    bytes: int = 0
    """What went over the wire, both ways; or would have, between two machines."""
    seconds: float = 0.0
    left_behind: list[LeftBehind] = []
    """What the stores that gave hold and no sync carries; of a sync that follows, in its first round."""

    @property
    def failed(self) -> list[LogOutcome]:
        """The logs that could not be brought together."""
        return [log for log in self.logs if log.error is not None]


class Progress(Struct, frozen=True):
    """How far a sync has come with one log."""

    log: str
    direction: Literal["pull", "push"]
    done: int
    """Records, of those that were missing when it began."""
    total: int
    bytes: int
    """Of this log, so far."""


Tell = Callable[[Progress], None]
