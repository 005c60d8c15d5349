"""A shift and its leases, as transcripts: an event per line with its time, and what is to be done.

`transcripts/*.txt` hold them. A line is `TIME EVENT -> EFFECTS`: the effects up to the first that
takes a while. `takes a b` is a handler that has ended `a` and goes on with `b`. Lines that begin with `#` or have no arrow are words for the reader. A message is a
letter, with its attempt if that is not the first: `b:3`. `python -m tests.unit.worker.test_shift FILE`
prints a transcript as it would be now.
"""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from millstream.errors import CannotOpen, Closed, LeaseLost, OutcomeUnknown
from millstream.queue.model.message import Message, Reject, Retry
from millstream.worker.effects import (
    Abandon,
    Begin,
    Claim,
    Complain,
    Effect,
    Finish,
    Handled,
    Idle,
    Look,
    Over,
    Renew,
)
from millstream.worker.leases import Leases
from millstream.worker.reason import reason_of
from millstream.worker.shift import Shift, ShiftPlan
from tests.unit.worker.messages import message

TRANSCRIPTS = sorted(Path(__file__).with_name("transcripts").glob("*.txt"))
ARROW = " -> "
ASKING = "still asking"
"""What is on its way is answered before anything else is done."""
ANSWERS = ("claimed", "finished", "looked", "failed", "renewed", "refused")
ERRORS: dict[str, Callable[[], Exception]] = {
    "lost": lambda: LeaseLost("late"),
    "passing": lambda: OutcomeUnknown("who knows"),
    "away": lambda: CannotOpen("no server", again=True),
    "fatal": lambda: Closed("closed"),
}


@cache  # a claimed message stays the same object until its end
def read_message(word: str) -> Message:
    letter, _, attempt = word.partition(":")
    return message(ord(letter), attempt=int(attempt or 1))


def read_messages(words: Sequence[str]) -> list[Message]:
    return [read_message(word) for word in words]


def read_outcome(word: str) -> Handled:
    """`a` has returned, `a+` has committed, `a!no` raised ValueError("no"), `a!Reject=no`, …"""
    name, _, failure = word.partition("!")
    if not failure:
        return Handled(read_message(name.rstrip("+")), committed=name.endswith("+"))
    kind, _, text = failure.partition("=")
    error: BaseException
    if kind == "Reject":
        error = Reject(text)
    elif kind == "Retry":
        error = Retry("later", after=float(text))
    elif kind == "Cancelled":
        error = CancelledError()
    else:
        error = ValueError(failure)
    return Handled(read_message(name), error)


def _some(message: Message | None) -> list[Message]:
    return [] if message is None else [message]


def written(messages: Sequence[Message]) -> str:
    return " ".join(chr(m.claim_id) + ("" if m.attempt == 1 else f":{m.attempt}") for m in messages)


def write_effect(effect: Effect | Renew) -> str:
    match effect:
        case Claim(n, wait_s, acks):
            wait = "" if wait_s is None else f" wait {wait_s:g}"
            return f"claim {n}{wait}" + (f" ack {written(acks)}" if acks else "")
        case Finish(messages, how, reason, delay_s):
            delay = "" if delay_s is None else f" delay {delay_s:g}"
            return f"{how} {written(messages)}{delay}" + (f" ({reason})" if reason else "")
        case Complain(one, error, then):
            return f"complain of {written([one])}: {type(error).__name__}, {then}"
        case Idle(until_s):
            return "wait" if until_s is None else f"wait until {round(until_s, 6):g}"
        case Begin(messages) | Abandon(messages) | Renew(messages):
            return f"{type(effect).__name__.lower()} {written(messages)}"
        case Look():
            return "look whether it is empty"
        case Over():
            return "done"


class ShiftScript:
    """A shift that is told what stands in a transcript."""

    def __init__(self, options: dict[str, str]) -> None:
        self.shift = Shift(
            ShiftPlan(
                concurrency=int(options.get("concurrency", 1)),
                batch=int(options.get("batch", 1)),
                lease_s=float(options.get("lease", 30)),
                attempts_max=int(options.get("attempts", 3)),
                overdue_s=float(options["limit"]) if "limit" in options else None,
                can_cancel="coroutines" in options,
                drain="drain" in options,
            )
        )
        self._is_asking = False

    def tell(self, now_s: float, event: str, words: list[str]) -> str:
        """Tell an event, and write what is to be done up to the first thing that takes a while."""
        self._tell(now_s, event, words)
        if self._is_asking and event not in ANSWERS:
            return ASKING
        effects: list[Effect] = []
        while not effects or isinstance(effects[-1], Begin | Abandon | Complain):
            effects.append(self.shift.next(now_s))
        self._is_asking = isinstance(effects[-1], Claim | Finish | Look)
        return "; ".join(map(write_effect, effects)) + self._sum(effects[-1])

    def _sum(self, last: Effect) -> str:
        if not isinstance(last, Over):
            return ""
        stats = self.shift.stats
        names = ("done", "failed", "retried", "lost", "running")
        counts = [f"{getattr(stats, name)} {name}" for name in names if getattr(stats, name)]
        error = [] if self.shift.error is None else [type(self.shift.error).__name__]
        return f" [{', '.join(counts + error)}]"

    def _tell(self, now_s: float, event: str, words: list[str]) -> None:
        shift = self.shift
        match event:
            case "claimed":
                shift.claimed(read_messages(words), now_s=now_s)
            case "finished":
                shift.finished(read_messages(words[1:]))
            case "looked":
                shift.looked(is_empty=words == ["empty"])
            case "failed":
                shift.failed(ERRORS[words[0]](), now_s=now_s)
            case "ended":
                shift.ended(map(read_outcome, words), now_s=now_s)
            case "takes":
                shift.ended([read_outcome(words[0])], now_s=now_s)
                assert written(_some(shift.take(now_s))) == " ".join(words[1:])
            case "stop":
                shift.stop()
            case "cancel":
                shift.cancel()
            case "broke":
                shift.broke(ERRORS[words[0]]())
            case _:
                assert event == "time"


class LeaseScript:
    """Leases that are told what stands in a transcript."""

    def __init__(self, options: dict[str, str]) -> None:
        self.leases = Leases(float(options.get("lease", 30)))
        self._asked: Sequence[Message] = ()
        self._is_asking = False

    def tell(self, now_s: float, event: str, words: list[str]) -> str:
        """Tell an event, and write what is to be done."""
        match event:
            case "hold":
                self.leases.hold(read_messages(words), since_s=now_s)
            case "drop":
                self.leases.drop(read_messages(words))
            case "renewed":
                self.leases.renewed(self._asked, since_s=now_s)
            case "refused":
                if not self.leases.refused(self._asked, ERRORS[words[0]](), now_s=now_s):
                    return "give up"
            case _:
                assert event == "time"
        if self._is_asking and event not in ANSWERS:
            return ASKING
        effect = self.leases.next(now_s)
        self._is_asking = isinstance(effect, Renew)
        if isinstance(effect, Renew):
            self._asked = effect.messages
        return write_effect(effect)


def replayed(text: str) -> Iterator[str]:
    """The lines of a transcript as they would be now."""
    script: ShiftScript | LeaseScript | None = None
    for line in text.splitlines():
        head, *words = line.split() or [""]
        if head in ("shift", "leases"):
            options = {name: value for name, _, value in (word.partition("=") for word in words)}
            script = ShiftScript(options) if head == "shift" else LeaseScript(options)
        if ARROW not in line:
            yield line
            continue
        assert script is not None
        told = line.partition(ARROW)[0]
        now, event, *given = told.split()
        yield f"{told}{ARROW}{script.tell(float(now), event, given)}"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_it_decides_as_written(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "\n".join(replayed(text)) == text.rstrip("\n")


def test_there_are_transcripts() -> None:
    assert {path.stem for path in TRANSCRIPTS} >= {"leases", "working", "stopping", "trouble"}


class Mute(Exception):
    """An error of a handler that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (Reject("never"), "never"),
        (Mute(), "Mute"),
        (ValueError("\ud800"), "ValueError: ?"),
        (ValueError("x" * 1000), "ValueError: " + "x" * 488),
    ],
)
def test_the_reason_is_a_short_text_that_can_be_stored(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


if __name__ == "__main__":
    sys.stdout.write("\n".join(replayed(Path(sys.argv[1]).read_text(encoding="utf-8"))) + "\n")
