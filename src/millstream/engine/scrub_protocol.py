"""What a scrub asks of an engine, and what an engine answers: values and one protocol, no I/O.

An engine that can be scrubbed names its stages, such as its tables. A stage is read from its beginning to
its end in small steps; a place in it is a text that only the engine understands.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import Struct

Reference = Callable[[bytes, bytes], bytes | None]
"""From the key and value of a row to the key of another row that must be there too; None: there is none."""


class Unsound(Struct, frozen=True):
    """Something that is not as it was written; a later look at the same place says whether it still is."""

    stage: str
    at: str
    """Where a step has to begin to meet it first."""
    message: str


class MissingRow(NamedTuple):
    """A row that another row needs and that the engine does not have; commits not yet folded may have it."""

    at: str
    parent: bytes
    child: bytes


class StepBounds(NamedTuple):
    """Where one step ends."""

    rows: int
    bytes: int
    is_over: Callable[[], bool]
    """Whether the time of the step is used up; asked after each row."""


class ScrubStep(NamedTuple):
    """What one step has read and found."""

    next_at: str | None
    """Where the next step begins; None at the end of the stage."""
    rows: int
    bytes: int
    fraction: float
    """How much of the stage lies behind, from 0 to 1; an estimate."""
    unsound: list[Unsound]
    missing: list[MissingRow]


class Scrubbable(Protocol):
    """What an engine has beyond `Engine` if it has the ability `scrub`."""

    scrub_share: float
    """The share of time that a scrub may read for; 0 if it is off."""
    scrub_stages: tuple[str, ...]

    def scrub(self, stage: str, at: str, bounds: StepBounds, needs: Reference) -> ScrubStep:
        """Read on in a stage, in one snapshot; an empty place is its beginning.

        Damage is an answer, never an error. Raises `Closed`, `Overloaded` and the like if nothing
        can be read now.
        """

    def scrubbed_file(self) -> Path | None:
        """The file that is read, wherever links lead; None if there is none."""
