"""The settings of a node: timers and limits, with the reason of each value."""

from __future__ import annotations

from dataclasses import dataclass

ELECTION_S = 20.0
"""How long callers wait during an election. The servers of the shared log notice a lost leader
after 4 to 9 s, and need as long again if two of them stand for election at once."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Timers decide when a node tries something; no timer decides what is true."""

    append_timeout_s: float = 2.0
    """How long an append is waited for, before its outcome counts as unsure."""

    settle_timeout_s: float = ELECTION_S
    """How long a leader waits for a shared log that takes no entries, and how long it tries to
    settle an unsure append. Callers then get `NoQuorum`, or an unknown outcome."""

    beat_s: float = 0.5
    """The interval at which an idle leader appends a barrier: a heartbeat for the followers, and a
    proof for the leader that it still leads."""

    silence_s: float = 2.5
    """A follower campaigns after such a silence of the leader."""

    jitter_s: float = 1.0
    """A random delay in addition: two followers then seldom campaign at once."""

    yields_damaged: bool = True
    """Whether a leader with damaged rows steps down if another node can lead."""

    turn_s: float = 0.5
    """The longest wait of a read of the shared log."""

    look_again_s: float = 1.0
    """The first interval at which a halted node checks a log that was gone or too short."""

    look_again_s_max: float = 30.0
    """The interval doubles up to this: a lost log stays lost until it is repaired."""

    stalled_s: float = 30.0
    """A follower takes a snapshot if it is behind and makes no progress for this time."""

    read_bytes_max: int = 4 * 1024 * 1024
    """Bytes of entries that are read, and applied in one local commit."""

    commit_bytes_max: int = 80 * 1024 * 1024
    """Bytes of a commit: the shared log holds 256 MiB in total, and a value may have 64 MiB."""

    inspection_s: float = 20.0
    """How long a starting node does not campaign while its file is checked. Checking a page takes 3
    microseconds of CPU time; a file of 100 GB and more is still checked while its node leads."""

    snapshot_entries_min: int = 50_000
    """A follower takes a snapshot instead of replaying more entries than this."""
