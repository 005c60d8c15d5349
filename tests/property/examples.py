"""How many examples a property test tries in each profile.

A number that a test names itself overrides the profile. So a test names its number for the normal
profile, and the number for the chosen profile follows from that.
"""

from __future__ import annotations

from hypothesis import settings

NORMAL = 100
"""The examples of a test in the normal profile, unless the test names a number."""

SCALE_MAX = 5
EXAMPLES_MIN = 15


def examples(normal_count: int) -> int:
    """Return the examples of a test that tries `normal_count` of them in the normal profile."""
    scaled = normal_count * settings().max_examples // NORMAL
    return max(min(normal_count, EXAMPLES_MIN), min(scaled, SCALE_MAX * normal_count))
