"""A supervisor, as transcripts: an event per line with its time, and what is to be done.

`transcripts/*.txt` hold them. A line is `TIME EVENT -> EFFECTS`: the effects up to the wait. Lines
without an arrow are words for the reader. `beat 1 5 a:kill=2 b` is a heartbeat of child 1 with
progress 5 and two running jobs, of which `a` is to be killed in 2 seconds.
`python -m tests.unit.jobs.processes.test_supervisor FILE` prints a transcript as it would be now.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.jobs.processes.effects import (
    Announce,
    Await,
    DrainChild,
    DumpStack,
    KillChild,
    PoolDone,
    PoolEffect,
    StartChild,
    Tell,
)
from millstream.jobs.processes.reports import Beat, ChildLeaving, Ready, RunningJob, Unusable
from millstream.jobs.processes.supervisor import PoolPlan, Supervisor

TRANSCRIPTS = sorted(Path(__file__).with_name("transcripts").glob("*.txt"))
ARROW = " -> "


def read_job(word: str) -> RunningJob:
    name, _, kill = word.partition(":kill=")
    kill_in_s = float(kill) if kill else None
    reason = "took too long" if kill else ""
    return RunningJob(name, "shop:work", "jobs", ord(name), 1, 0.0, kill_in_s, reason)


def write_effect(effect: PoolEffect) -> str:
    match effect:
        case StartChild(number, orphans):
            jobs = [f"{chr(o.claim_id)}{'!' if o.is_to_blame else ''} {o.reason}" for o in orphans]
            return f"start {number}" + (f" ({'; '.join(jobs)})" if jobs else "")
        case Tell(level, _, text):
            return f"{level} '{text}'"
        case Announce(state):
            return state
        case Await(until_s):
            return "wait" if until_s is None else f"wait until {round(until_s, 6):g}"
        case PoolDone(code):
            return f"exit {code}"
        case DrainChild(number):
            return f"drain {number}"
        case DumpStack(number):
            return f"dump {number}"
        case KillChild(number):
            return f"kill {number}"


class SupervisorScript:
    """A supervisor that is told the events of a transcript."""

    def __init__(self, options: dict[str, str]) -> None:
        self.supervisor = Supervisor(
            PoolPlan(
                processes=int(options.get("processes", 1)),
                stall_s=float(options["stall"]) if "stall" in options else None,
                is_draining="draining" in options,
                is_reloading="reloading" in options,
            )
        )

    def tell(self, now_s: float, event: str, words: list[str]) -> str:
        """Tell an event; return the effects up to the first that waits."""
        self._tell(now_s, event, words)
        effects: list[PoolEffect] = []
        while not effects or not isinstance(effects[-1], Await | PoolDone):
            effects.append(self.supervisor.next(now_s))
        return "; ".join(map(write_effect, effects))

    def _tell(self, now_s: float, event: str, words: list[str]) -> None:
        supervisor = self.supervisor
        match event:
            case "ready":
                supervisor.reported(int(words[0]), Ready(), now_s=now_s)
            case "beat":
                number, progress, *jobs = words
                beat = Beat(int(progress), 1, tuple(map(read_job, jobs)))
                supervisor.reported(int(number), beat, now_s=now_s)
            case "leaving":
                supervisor.reported(int(words[0]), ChildLeaving(" ".join(words[1:])), now_s=now_s)
            case "unusable":
                supervisor.reported(int(words[0]), Unusable(" ".join(words[1:])), now_s=now_s)
            case "exited":
                supervisor.exited(int(words[0]), int(words[1]), now_s=now_s)
            case "changed":
                supervisor.changed(words, now_s=now_s)
            case "stop":
                supervisor.stop(code=143)
            case _:
                assert event == "time"


def replayed(text: str) -> Iterator[str]:
    """The lines of a transcript as they would be now."""
    script: SupervisorScript | None = None
    for line in text.splitlines():
        head, *words = line.split() or [""]
        if head == "supervisor":
            options = {name: value for name, _, value in (word.partition("=") for word in words)}
            script = SupervisorScript(options)
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


def effects_of(supervisor: Supervisor) -> list[str]:
    """The effects up to the wait, as transcripts write them."""
    effects = [supervisor.next(0.0)]
    while not isinstance(effects[-1], Await | PoolDone):
        effects.append(supervisor.next(0.0))
    return [write_effect(effect) for effect in effects]


def test_a_child_that_has_ended_meanwhile_is_not_killed() -> None:
    """Two children end at the same moment: the shell hears of both before the next effect."""
    supervisor = Supervisor(PoolPlan(processes=2))
    effects_of(supervisor)

    supervisor.reported(1, Unusable("no jobs"), now_s=0.0)
    supervisor.exited(2, 1, now_s=0.0)

    assert "kill 1" in (effects := effects_of(supervisor))
    assert "kill 2" not in effects
    supervisor.exited(1, 1, now_s=0.0)
    assert effects_of(supervisor) == ["exit 1"]


def test_a_child_that_ends_as_all_are_to_stop_is_not_drained() -> None:
    supervisor = Supervisor(PoolPlan(processes=2))
    effects_of(supervisor)
    for number in (1, 2):
        supervisor.reported(number, Ready(), now_s=0.0)
    effects_of(supervisor)

    supervisor.stop(code=143)
    supervisor.exited(2, -9, now_s=0.0)

    assert "drain 1" in (effects := effects_of(supervisor))
    assert "drain 2" not in effects


def test_there_are_transcripts() -> None:
    assert {path.stem for path in TRANSCRIPTS} >= {"working", "stopping", "dying", "killing"}


if __name__ == "__main__":
    sys.stdout.write("\n".join(replayed(Path(sys.argv[1]).read_text(encoding="utf-8"))) + "\n")
