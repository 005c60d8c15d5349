"""The scrub: the background reads every row of a store again, to find damage before a user needs it.

A pass goes through all stages of the engine in small steps. A step ends after `share` of a second, and
a pause follows that limits the scrub to this share of time, also on a slow disk. A handle does not
scrub in its first minute, so that short commands never scrub. Of several processes, one scrubs.

A finding stays until its place is sound or deleted, which is checked once a minute. The scrub never
writes to the store, and never blocks it. Position, time of the last pass and findings are in a file of
notes, written at most once a minute, and at each new finding.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, cast

from millstream.clock import Clock
from millstream.engine.protocol import Engine, Reference, Scrubbable, ScrubStep, StepBounds, Unsound
from millstream.engine.scrub_notes import FINDINGS_MAX, HeldFinding, Notes, NotesFile
from millstream.errors import InvalidInput, MillstreamError
from millstream.limits import MiB

_logger = logging.getLogger("millstream.store")

TURN_S = 1.0
"""Least time between two steps: the period of the keeper."""

FIRST_S = 60.0
"""Age of a handle before it scrubs, and the period of its attempts to take the lock."""

NOTED_S = 60.0
"""Period in which the position is written, and findings are checked again."""

PASS_S = 3_600.0
"""Pause after a pass."""

NEWS_S = 5.0
"""Period in which the notes of another process are read."""

SHARE_MAX = 0.5
ROWS_MAX = 2_000
BYTES_MAX = 4 * MiB
"""Maxima of one step."""

ScrubState = Literal["off", "waiting", "running", "resting", "elsewhere"]
"""`waiting`: the handle is too new; `elsewhere`: another process scrubs."""


class Scrub:
    """The scrub of one handle; `turn` belongs to the keeper, `pass_over` and `report` to any thread."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        *,
        whose: Callable[[], str],
        needs: Reference = lambda _key, _value: None,
        lost: Callable[[bytes, bytes], str] = lambda _parent, _child: "",
    ) -> None:
        """`whose` names the store. `lost` describes the loss by a missing row, or returns an empty
        text."""
        self._engine = cast(Scrubbable, engine) if "scrub" in engine.abilities else None
        self._clock, self._whose, self._store_name = clock, whose, ""
        self._needs, self._lost = needs, lost
        self._share = 0.0 if self._engine is None else check_share(self._engine.scrub_share)
        self._store_file = None if self._engine is None else self._engine.scrubbed_file()
        self._file = NotesFile(self._store_file)
        self._lock = threading.Lock()
        """Guards the notes: reports are made on other threads."""
        self._reading = threading.Lock()
        """Held by the thread that reads: a second reader would continue one stage at the place of
        another."""
        self._notes = Notes()
        self._due_s = clock.seconds() + FIRST_S
        self._noted_s = self._news_s = clock.seconds()
        self._has_news, self._is_elsewhere = True, False
        self.rows_read = 0
        """Rows that this handle has read since it was opened."""
        self.last_failure: str | None = None

    @property
    def share(self) -> float:
        """The share of time that the scrub reads."""
        return self._share

    @share.setter
    def share(self, share: float) -> None:
        self._share = check_share(share)

    def turn(self) -> None:
        """Take a step if one is due; the keeper calls `turn` every second. Damage is noted, not raised.

        Beside `pass_over` there is no step to take.
        """
        if not self._share or self._engine is None or self._clock.seconds() < self._due_s:
            return
        if not self._reading.acquire(blocking=False):
            return
        try:
            self._take_turn()
        finally:
            self._reading.release()

    def pass_over(self) -> None:
        """Run a complete pass on the caller's thread, without pauses; for tests and tools.

        A pass that the keeper has begun starts again.
        """
        assert self._engine is not None
        with self._reading:
            if not self._file.is_held and not self._begin():
                return
            self._start_pass(self._engine.scrub_stages[0])
            while self._notes.is_running:
                self._step()

    def report(self) -> dict[str, Any]:
        """Return the state of the scrub for `stats`."""
        if self._engine is None:
            return {"scrub": "off"}
        notes = self._current_notes()
        with self._lock:
            age_ms = self._clock.wall_ms() - notes.completed_ms
            return {
                "scrub": self._state(notes),
                "scrub_progress": round(notes.progress(self._engine.scrub_stages), 4),
                "scrub_age_s": max(0, age_ms) / 1000 if notes.completed_ms else None,
                "scrub_rows": self.rows_read,
                "scrub_findings": [held.found.message for held in notes.findings],
                "scrub_findings_left_off": notes.left_off,
            }

    def close(self) -> None:
        """Write the position, and release the lock for another process."""
        if self._file.is_held:
            self._file.write(self._notes)
            self._file.release()

    def drop(self) -> None:
        """In a forked child, close the descriptor that belongs to the parent."""
        self._file.release(in_child=True)

    def _state(self, notes: Notes) -> ScrubState:
        if not self._share:
            return "off"
        if not self._file.is_held:
            return "elsewhere" if self._is_elsewhere else "waiting"
        return "running" if notes.is_running else "resting"

    def _current_notes(self) -> Notes:
        """Return the notes of the process that scrubs."""
        if self._file.is_held:
            return self._notes
        with self._lock:
            now_s = self._clock.seconds()
            if self._has_news or now_s - self._news_s >= NEWS_S:
                self._has_news, self._news_s = False, now_s
                self._notes = self._of_store(self._file.read()) or self._notes
            return self._notes

    def _begin(self) -> bool:
        """Take the lock, and continue at the position of the last process."""
        self._is_elsewhere = not self._file.take()
        if self._is_elsewhere:
            return False
        with self._lock:
            self._notes = self._of_store(self._file.read()) or Notes(whose=self._name())
        return True

    def _of_store(self, notes: Notes | None) -> Notes | None:
        return notes if notes is not None and notes.whose == self._name() else None

    def _name(self) -> str:
        """Return the name of the store and the inode of its file: a restored copy is read anew.

        Damage may hide the name of the store: the inode alone identifies the notes then.
        """
        inode = 0
        if self._store_file is not None:
            with suppress(OSError):
                inode = self._store_file.stat().st_ino
        if not self._store_name:
            with suppress(MillstreamError):
                self._store_name = self._whose()
        return f"{self._store_name} {inode}"

    # One step.

    def _take_turn(self) -> None:
        if not self._file.is_held and not self._begin():
            self._due_s = self._clock.seconds() + FIRST_S
            return
        began_s = self._clock.seconds()
        try:
            if self._notes.is_running or self._is_pass_due():
                self._step()
                took_s = self._clock.seconds() - began_s
                self._due_s = began_s + max(TURN_S, took_s / self._share)
            else:
                self._note_if_due()
                self._due_s = began_s + FIRST_S
            self.last_failure = None
        except (
            MillstreamError
        ) as error:  # a missing or busy file, for example, which callers report
            self.last_failure = error.message
            self._due_s = began_s + FIRST_S

    def _step(self) -> None:
        notes, engine = self._notes, self._engine
        assert engine is not None
        if notes.whose != self._name():  # the file was exchanged
            with self._lock:
                self._notes = notes = Notes(whose=self._name())
        self._note_if_due()
        if notes.stage not in engine.scrub_stages:
            self._start_pass(engine.scrub_stages[0])
        step, unsound = self._read(notes.stage, notes.at, rows=ROWS_MAX, within_s=self._share)
        self.rows_read += step.rows
        is_new = False
        with self._lock:
            notes.rows += step.rows
            notes.fraction = step.fraction
            read = notes.stage_bytes.get(notes.stage, 0)
            notes.stage_bytes[notes.stage] = read + step.bytes
            for finding in unsound:
                is_new = self._hold(finding) or is_new
            ended = step.next_at is None and self._end_stage()
            if step.next_at is not None:
                notes.at = step.next_at
        if is_new or ended:
            self._noted_s = self._clock.seconds()
            self._file.write(notes)

    def _read(
        self, stage: str, at: str, *, rows: int, within_s: float
    ) -> tuple[ScrubStep, list[Unsound]]:
        """Read from a place; add rows with missing references to the findings."""
        assert self._engine is not None
        until_s = self._clock.seconds() + within_s
        bounds = StepBounds(rows, BYTES_MAX, lambda: self._clock.seconds() >= until_s)
        step = self._engine.scrub(stage, at, bounds, self._needs)
        unsound = list(step.unsound)
        for missing in step.missing:
            if lost := self._lost(missing.parent, missing.child):
                unsound.append(Unsound(stage, missing.at, lost))
        return step, unsound

    def _start_pass(self, stage: str) -> None:
        notes = self._notes
        with self._lock:
            notes.stage, notes.at, notes.fraction = stage, "", 0.0
            notes.pass_number += 1
            notes.rows, notes.stage_bytes, notes.left_off = 0, {}, 0

    def _end_stage(self) -> bool:
        """Begin the next stage; True at the end of the pass, which drops findings not met again."""
        assert self._engine is not None
        notes, stages = self._notes, self._engine.scrub_stages
        following = stages[stages.index(notes.stage) + 1 :]
        notes.stage, notes.at, notes.fraction = (following or ("",))[0], "", 0.0
        if following:
            return False
        notes.completed_ms = self._clock.wall_ms()
        notes.last_bytes = notes.stage_bytes
        notes.findings = [held for held in notes.findings if held.pass_number == notes.pass_number]
        return True

    def _hold(self, finding: Unsound) -> bool:
        """Note a finding; True for a new finding."""
        notes = self._notes
        for held in notes.findings:
            if (held.found.stage, held.found.at) == (finding.stage, finding.at):
                held.found, held.pass_number = finding, notes.pass_number
                return False
        if len(notes.findings) >= FINDINGS_MAX:
            notes.left_off += 1
            return False
        notes.findings.append(HeldFinding(finding, notes.pass_number))
        _logger.warning("store_damaged", extra={"why": finding.message})
        return True

    def _is_pass_due(self) -> bool:
        rested_ms = self._clock.wall_ms() - self._notes.completed_ms
        return not 0 <= rested_ms < PASS_S * 1000  # also if the wall clock was set back

    def _note_if_due(self) -> None:
        """Once a minute, check the findings again, and write changed notes."""
        if self._clock.seconds() - self._noted_s < NOTED_S:
            return
        self._noted_s = self._clock.seconds()
        if self._look_again() or self._notes.is_running:
            self._file.write(self._notes)

    def _look_again(self) -> bool:
        """Drop findings whose places are sound or empty now; True if a finding was dropped."""
        healed = []
        for held in list(self._notes.findings):
            place = held.found.stage, held.found.at
            _, unsound = self._read(*place, rows=1, within_s=self._share)
            if all((finding.stage, finding.at) != place for finding in unsound):
                healed.append(held)
        with self._lock:
            for held in healed:
                self._notes.findings.remove(held)
        return bool(healed)


def check_share(share: Any) -> float:
    """Return a valid share of time for a scrub."""
    if not isinstance(share, int | float) or not 0 <= share <= SHARE_MAX:
        raise InvalidInput(
            f"scrub_share is a share of time from 0 (off) to {SHARE_MAX:g}, such as 0.01, not {share!r}"
        )
    return float(share)
