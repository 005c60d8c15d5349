"""Interleaving: records of several logs in the order of time, as far as all were looked at."""

from __future__ import annotations

from millstream.queue.model.grants import Routed
from millstream.queue.model.slots import Span
from millstream.queue.rules.interleaving import Looked, arrivals_ms, interleave
from millstream.queue.rules.sources import QueueSource

Log = list[tuple[int, bool]]
"""For each record, when it was appended, and whether the queue takes it."""


class Logs:
    """Logs in memory that count how often they are looked at."""

    def __init__(self, *logs: Log, damaged: tuple[int, int] = (-1, -1)) -> None:
        self.logs = logs
        self.damaged = damaged
        self.positions = [0] * len(logs)
        self.looks = 0
        self.ahead: dict[int, Looked] = {}

    def look(self, source: QueueSource, want: int) -> Looked:
        self.looks += 1
        log, start = self.logs[source.log_id], source.position
        if (source.log_id, start) == self.damaged:
            return Looked(
                Routed(source.log_id, start, start + 1, [], skipped=[(start, start + 1)]), 0
            )
        stop = min(len(log), start + want)
        if self.damaged[0] == source.log_id and start < self.damaged[1]:
            stop = min(stop, self.damaged[1])
        spans = [
            Span(0, 1, source.log_id, at, at, log[at][0]) for at in range(start, stop) if log[at][1]
        ]
        return Looked(Routed(source.log_id, start, stop, spans), log[stop - 1][0])

    def step(self, most: int) -> list[int]:
        """The times of what is placed at once, in order."""
        sources = [
            QueueSource(log_id, "", position, len(self.logs[log_id]))
            for log_id, position in enumerate(self.positions)
            if position < len(self.logs[log_id])
        ]
        found = interleave(sources, self.look, most, self.ahead)
        for routed in found:
            assert routed.start == self.positions[routed.log_id]
            self.positions[routed.log_id] = routed.stop
        return sorted(time for routed in found for time in arrivals_ms(routed.spans))

    def drain(self, most: int) -> list[int]:
        placed = []
        while any(at < len(log) for at, log in zip(self.positions, self.logs, strict=True)):
            placed += self.step(most)
        return placed


def test_what_does_not_match_holds_the_others_back() -> None:
    logs = Logs([(time, time >= 500) for time in range(600)], [(550, True), (600, True)])
    assert logs.drain(20) == [*range(500, 551), 550, *range(551, 600), 600]


def test_nothing_is_looked_at_twice() -> None:
    count, size = 100, 40
    logs = Logs(*[[(at * count + log, True) for at in range(size)] for log in range(count)])
    assert logs.drain(50) == list(range(count * size))
    assert logs.looks <= count * 6


def test_what_lies_around_damage_is_in_order() -> None:
    logs = Logs([(at, True) for at in range(0, 100, 2)], [(1, True), (51, True)], damaged=(0, 20))
    placed = logs.drain(8)
    assert placed == sorted(placed)
    assert placed == sorted([*(at for at in range(0, 100, 2) if at != 40), 1, 51])
