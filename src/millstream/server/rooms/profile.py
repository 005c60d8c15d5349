"""Profiles: named settings that weigh latency against load."""

from __future__ import annotations

from msgspec import Struct


class Profile(Struct, frozen=True, kw_only=True):
    """The settings of a profile."""

    gather_s: float
    """How long new messages of a room gather before they are fetched and pushed."""
    tick_factor: float
    """The factor by which the ticks of conflated types are longer than the room's setting."""
    pushes_own: bool
    """Whether messages that this instance stores are pushed at once, and not read back first."""


PROFILES: dict[str, Profile] = {
    "balanced": Profile(gather_s=0.0, tick_factor=1.0, pushes_own=True),
    "low-latency": Profile(gather_s=0.0, tick_factor=0.5, pushes_own=True),
    "high-throughput": Profile(gather_s=0.2, tick_factor=2.5, pushes_own=False),
}
