"""What can be set of a node: its timers and bounds, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

ELECTION_S = 20.0
"""How long callers are kept waiting while servers elect one of them. The servers of the shared log miss
their leading one after 4 to 9 s, and need as long again if two of them stand for election at once."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Timers decide when a node tries something; none of them decides what is true."""

    append_timeout_s: float = 2.0
    """How long one append is waited for, before its outcome is called unsure."""

    settle_timeout_s: float = ELECTION_S
    """How long a leader waits for a shared log that takes nothing, and how long it tries to make an
    unsure append certain. After that callers are told `NoQuorum`, or that the outcome is unknown."""

    beat_s: float = 0.5
    """An idle leader appends a barrier so often: followers see by it that it lives, and it sees that
    it still leads."""

    silence_s: float = 2.5
    """A follower campaigns once it has heard nothing of the leader for so long."""

    jitter_s: float = 1.0
    """Up to so much later, at random: two followers seldom campaign at the same time."""

    yields_damaged: bool = True
    """Whether a leader whose rows turn out to be damaged steps down, if another node could lead."""

    turn_s: float = 0.5
    """The longest wait of one look at the shared log."""

    look_again_s: float = 1.0
    """How soon a node that has halted because its log was gone or too short looks again."""

    look_again_s_max: float = 30.0
    """It waits twice as long each time, up to this: a log that was lost stays so until it is repaired."""

    stalled_s: float = 30.0
    """A follower that is behind and makes no progress for so long takes a snapshot."""

    read_bytes_max: int = 4 * 1024 * 1024
    """Bytes of entries that are read, and applied in one local commit."""

    commit_bytes_max: int = 80 * 1024 * 1024
    """Bytes of one commit: the shared log holds 256 MiB in all, and a value may have 64."""

    inspection_s: float = 20.0
    """How long a node that starts does not campaign because its file is being checked. A checked page
    takes 3 microseconds of a processor; a file of 100 GB and more is checked on while its node leads."""

    snapshot_entries_min: int = 50_000
    """A follower so many entries behind takes a snapshot rather than replay them."""
