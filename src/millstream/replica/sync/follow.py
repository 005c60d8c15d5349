"""Following: sync again as soon as a log has changed, until the caller stops.

A store tells when a log has changed: a follower waits until the newest commit passes a number.
Rounds without any change are spaced further and further apart, so that a store that is busy with
other work is left alone.
"""

from __future__ import annotations

from millstream.command import Read, Traits, Wait
from millstream.format import keys
from millstream.replica.sync.outcome import LogOutcome, Options, Outcome
from millstream.replica.sync.steps import Party
from millstream.store.sleep import Sleep, Waiting
from millstream.store.store import Store

WAIT_MS = 1_000
"""The longest single wait: a caller that stops following is noticed within it."""

PAUSE_S_MIN = 0.01
PAUSE_S_MAX = 1.0
"""Between rounds without any change."""

WATCHED = (keys.prefix(keys.HEAD), keys.prefix(keys.METADATA), keys.prefix(keys.NAME))


class WaitForChange(Read[int], frozen=True):
    """Wait until a log may have changed after a commit, and return the newest commit."""

    traits = Traits(needs="nothing", waits=Wait("timeout_ms"))

    sequence: int
    timeout_ms: int


def wait_for_change(store: Store, query: WaitForChange) -> Waiting[int]:
    """Wait for a newer commit, woken by commits that change a log."""
    if newest(store) <= query.sequence:
        wait_s = max(0, min(query.timeout_ms, WAIT_MS)) / 1000
        yield Sleep(WATCHED, lambda: newest(store) > query.sequence, wait_s)
    return newest(store)


def newest(store: Store) -> int:
    """Return the newest commit of any process."""
    store.refresh()
    return store.seq


def watched_parties(options: Options) -> tuple[Party, ...]:
    """Return the parties whose changes matter to a sync."""
    return {"both": ("local", "peer"), "pull": ("peer",), "push": ("local",)}[options.direction]  # type: ignore[return-value]


class Pace:
    """Decides which rounds are reported, and how long to pause after a round."""

    def __init__(self) -> None:
        self.seconds = PAUSE_S_MIN
        self._failed: list[LogOutcome] | None = None

    def tells(self, outcome: Outcome) -> bool:
        """Whether a round changed or failed; a failure is reported only the first time."""
        failed = [log for log in outcome.logs if log == LogOutcome(log=log.log, error=log.error)]
        moved = len(failed) < len(outcome.logs)
        is_news = moved or failed != self._failed
        self.seconds = PAUSE_S_MIN if moved else min(self.seconds * 2, PAUSE_S_MAX)
        self._failed = failed
        return is_news
