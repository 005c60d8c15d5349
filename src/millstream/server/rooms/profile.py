"""Profiles: how an instance weighs latency against load; named figures, nothing else."""

from __future__ import annotations

from msgspec import Struct


class Profile(Struct, frozen=True, kw_only=True):
    """What a profile changes."""

    gather_s: float
    """How long news of a room gathers before it is fetched and pushed."""
    tick_factor: float
    """By how much the ticks of conflated types are longer than the room says."""
    pushes_own: bool
    """Whether what this instance stores is pushed at once, rather than fetched with the rest."""


PROFILES: dict[str, Profile] = {
    "balanced": Profile(gather_s=0.0, tick_factor=1.0, pushes_own=True),
    "low-latency": Profile(gather_s=0.0, tick_factor=0.5, pushes_own=True),
    "high-throughput": Profile(gather_s=0.2, tick_factor=2.5, pushes_own=False),
}
