"""The gather of group commit, told as transcripts: an event per line, and what follows from it.

A caller is a letter; a capital letter's operation is joint, with those of the same number behind it; a
`z` at the end says that its caller naps, and a `~` before it is a coroutine. A line is
`event -> effect | phase: who waits`.
"""

from __future__ import annotations

from functools import cache

import pytest

from millstream.store.commit.gather import (
    COMMIT_ALONE,
    GATHER_S_MAX,
    RETRY,
    VAIN_MAX,
    Effect,
    Gather,
    Payoff,
)


class Caller:
    """A ticket as the gather sees it."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def joint(self) -> bool:
        return self.name[0].isupper()

    @property
    def joins(self) -> str | None:
        return self.name[1:].rstrip("z") if self.joint else None

    @property
    def naps(self) -> bool:
        return self.name.endswith("z")

    @property
    def has_thread(self) -> bool:
        return not self.name.startswith("~")


caller = cache(Caller)


def happen(gather: Gather[Caller], event: str) -> Effect | None:
    """Have an event of a transcript happen."""
    what, *names = event.split()
    callers = [caller(name) for name in names]
    if what == "arrive":
        return gather.arrive(callers[0])
    if what == "arrive_alone":
        return COMMIT_ALONE if gather.arrive_alone() else None
    if what == "arrive_all":
        return gather.arrive_all(callers)
    if what == "timeout":
        return gather.timeout(callers[0])
    if what == "leave":
        assert gather.withdraw(callers[0])
        return gather.left(callers[0])
    if what == "committed":
        return gather.committed(int(names[0]))
    taken = gather.refuse() if what == "refuse" else gather.take(int(names[0]))
    return Effect(f"{what}s {' '.join(one.name for one in taken)}".strip())  # type: ignore[arg-type]


def told(gather: Gather[Caller], event: str) -> str:
    effect = happen(gather, event)
    words = "none" if effect is None else effect.kind
    if effect is not None and effect.ticket is not None:
        words += f" {effect.ticket.name}"
    waiting = " ".join(one.name for one in gather.waiting)
    return f"{event} -> {words} | {gather.phase}: {waiting}".rstrip()


TRANSCRIPTS = {
    "a caller alone": """
        arrive a -> commit alone | committing:
        committed 1 -> none | idle:
        arrive B -> commit alone | committing:
        committed 1 -> none | idle:
    """,
    "callers that come during a commit are the next group, and the first of them commits": """
        arrive a -> commit alone | committing:
        arrive b -> wait | committing: b
        arrive c -> wait | committing: b c
        committed 1 -> wake to commit b | committing: b c
        take 10 -> takes b c | committing:
        committed 2 -> none | idle:
    """,
    "what is run at once or not at all neither waits nor keeps others waiting": """
        arrive_alone -> commit alone | committing:
        arrive_alone -> none | committing:
        arrive A -> wait | committing: A
        committed 1 -> wake to gather A | gathering: A
        arrive_alone -> none | gathering: A
        timeout A -> commit | committing: A
        take 10 -> takes A | committing:
        committed 1 -> none | idle:
        arrive_alone -> commit alone | committing:
        committed 1 -> none | idle:
    """,
    "a group has a largest size": """
        arrive a -> commit alone | committing:
        arrive b -> wait | committing: b
        arrive c -> wait | committing: b c
        arrive d -> wait | committing: b c d
        committed 1 -> wake to commit b | committing: b c d
        take 2 -> takes b c | committing: d
        committed 2 -> wake to commit d | committing: d
    """,
    "the first joint caller gathers, and the caller that completes the number commits": """
        arrive A -> commit alone | committing:
        arrive B -> wait | committing: B
        arrive C -> wait | committing: B C
        committed 1 -> wake to gather B | gathering: B C
        arrive A -> commit | committing: B C A
        take 10 -> takes B C A | committing:
        committed 3 -> none | idle:
        arrive C -> wait | gathering: C
        arrive d -> wait | gathering: C d
        arrive B -> commit | committing: C d B
    """,
    "the first commits when the others do not come": """
        arrive A -> commit alone | committing:
        arrive B -> wait | committing: B
        committed 1 -> wake to gather B | gathering: B
        timeout B -> commit | committing: B
        take 10 -> takes B | committing:
        committed 1 -> none | idle:
        arrive B -> commit alone | committing:
    """,
    "a first that naps is not woken, and the caller of the last commit commits again": """
        arrive a -> commit alone | committing:
        arrive Bz -> wait | committing: Bz
        committed 1 -> none | gathering: Bz
        arrive a -> commit | committing: Bz a
        take 10 -> takes Bz a | committing:
        committed 2 -> none | idle:
    """,
    "a first that naps commits when it wakes and the last committing caller has not come again": """
        arrive a -> commit alone | committing:
        arrive Bz -> wait | committing: Bz
        committed 1 -> none | gathering: Bz
        timeout Bz -> commit | committing: Bz
        take 10 -> takes Bz | committing:
    """,
    "a first that naps while a commit goes on and on waits": """
        arrive a -> commit alone | committing:
        arrive Bz -> wait | committing: Bz
        timeout Bz -> wait | committing: Bz
    """,
    "two callers of different kinds do not wait for each other": """
        arrive A -> commit alone | committing:
        arrive B1 -> wait | committing: B1
        committed 1 -> wake to gather B1 | gathering: B1
        arrive A -> commit | committing: B1 A
        take 10 -> takes B1 A | committing:
        committed 2 -> none | idle:
        arrive A -> commit | committing: A
    """,
    "two callers of the same kind do": """
        arrive A1 -> commit alone | committing:
        arrive B1 -> wait | committing: B1
        committed 1 -> wake to gather B1 | gathering: B1
        arrive A1 -> commit | committing: B1 A1
        take 10 -> takes B1 A1 | committing:
        committed 2 -> none | idle:
        arrive A1 -> wait | gathering: A1
    """,
    "a timeout that comes too late changes nothing": """
        arrive A -> commit alone | committing:
        arrive B -> wait | committing: B
        committed 1 -> wake to gather B | gathering: B
        arrive A -> commit | committing: B A
        timeout B -> wait | committing: B A
    """,
    "a caller whose operation is not joint commits at once, though others are expected": """
        arrive A -> commit alone | committing:
        arrive B -> wait | committing: B
        committed 1 -> wake to gather B | gathering: B
        timeout B -> commit | committing: B
        take 10 -> takes B | committing:
        arrive C -> wait | committing: C
        committed 1 -> wake to gather C | gathering: C
        timeout C -> commit | committing: C
        take 10 -> takes C | committing:
        committed 2 -> none | idle:
        arrive d -> commit | committing: d
    """,
    "a thread commits for coroutines": """
        arrive_all ~a ~b -> use thread | committing: ~a ~b
        arrive_all ~c -> none | committing: ~a ~b ~c
        take 10 -> takes ~a ~b ~c | committing:
        arrive_all ~d -> none | committing: ~d
        committed 3 -> use thread | committing: ~d
    """,
    "coroutines complete the number too, and the first commits": """
        arrive A -> commit alone | committing:
        arrive B -> wait | committing: B
        arrive C -> wait | committing: B C
        committed 1 -> wake to gather B | gathering: B C
        arrive_all ~d -> wake to commit B | committing: B C ~d
    """,
    "coroutines that do not complete it wait": """
        arrive A -> commit alone | committing:
        arrive B -> wait | committing: B
        committed 3 -> wake to gather B | gathering: B
        arrive_all ~d -> none | gathering: B ~d
    """,
    "a first that leaves is followed by the next": """
        arrive A -> commit alone | committing:
        arrive B -> wait | committing: B
        arrive C -> wait | committing: B C
        committed 9 -> wake to gather B | gathering: B C
        leave B -> wake to gather C | gathering: C
    """,
    "another caller that leaves is withdrawn": """
        arrive a -> commit alone | committing:
        arrive b -> wait | committing: b
        arrive c -> wait | committing: b c
        leave b -> none | committing: c
        committed 1 -> wake to commit c | committing: c
    """,
    "refused while a group is gathered": """
        arrive A -> commit alone | committing:
        arrive B -> wait | committing: B
        committed 9 -> wake to gather B | gathering: B
        refuse -> refuses B | idle:
    """,
    "refused while a committer commits": """
        arrive a -> commit alone | committing:
        arrive b -> wait | committing: b
        refuse -> refuses b | committing:
        committed 1 -> none | idle:
    """,
}


@pytest.mark.parametrize("title", TRANSCRIPTS)
def test_transcript(title: str) -> None:
    lines = [line.strip() for line in TRANSCRIPTS[title].strip().splitlines()]
    gather: Gather[Caller] = Gather()
    assert [told(gather, line.split(" -> ")[0]) for line in lines] == lines


def test_a_group_that_is_put_back_comes_first() -> None:
    gather: Gather[Caller] = Gather()
    for name in "abcd":
        gather.arrive(Caller(name))
    group = gather.take(2)
    gather.put_back(group)
    assert [one.name for one in gather.waiting] == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("commit_s", "others_sleep", "expected"),
    [
        (0.001, False, 0.0004),
        (1.0, False, GATHER_S_MAX),
        (-5.0, False, 0.0),
        (0.0, True, GATHER_S_MAX),
    ],
)
def test_how_long_the_first_waits(commit_s: float, others_sleep: bool, expected: float) -> None:
    gather: Gather[Caller] = Gather()
    gather.commit_s = commit_s
    assert gather.patience_s(others_sleep=others_sleep) == pytest.approx(expected)


@pytest.mark.parametrize(("commit_s", "next_s"), [(0.001, 0.001), (0.015, GATHER_S_MAX)])
def test_a_nap_ends_after_the_next_commit_if_that_is_short(commit_s: float, next_s: float) -> None:
    gather: Gather[Caller] = Gather()
    gather.began_s, gather.commit_s = 100.0, commit_s
    moment_s = gather.patience_s(others_sleep=False)
    assert gather.nap_s(100.0003) == pytest.approx(commit_s - 0.0003 + moment_s + next_s)


@pytest.mark.parametrize("now_s", [100.001, 200.0, 99.0], ids=["over", "long over", "moved clock"])
def test_a_commit_that_should_be_over_is_not_slept_through(now_s: float) -> None:
    gather: Gather[Caller] = Gather()
    gather.began_s, gather.commit_s = 100.0, 0.001
    assert gather.nap_s(now_s) == 0.0


def test_callers_whose_naps_are_in_vain_are_woken() -> None:
    gather: Gather[Caller] = Gather()
    gather.commit_s = 0.001
    for _ in range(VAIN_MAX):
        assert gather.nap_s(0.0)
        gather.arrive(caller("a"))
        gather.arrive(caller("Bz"))
        gather.committed(0)
        assert gather.timeout(caller("Bz")).kind == "commit"
        gather.take(9)
        gather.committed(1)
    assert gather.nap_s(0.0) == 0.0


def test_it_does_not_pay_to_wait_for_callers_that_do_not_come() -> None:
    payoff = Payoff()
    for _ in range(VAIN_MAX):
        assert payoff.pays()
        payoff.note(came=False)
    assert [payoff.pays() for _ in range(3 * RETRY)].count(True) == 3, "now and then it is tried"
    payoff.note(came=True)
    assert payoff.pays()


def test_a_joint_caller_whose_waits_are_in_vain_leads_at_once() -> None:
    gather: Gather[Caller] = Gather()
    waits = 0
    for _ in range(VAIN_MAX + RETRY):
        gather.expected = 2
        if gather.arrive(caller("A")).kind == "wait":
            waits += 1
            assert gather.timeout(caller("A")).kind == "commit"
        gather.take(9)
        gather.committed(1)
    assert waits == VAIN_MAX + 1


def test_a_joint_caller_that_others_join_goes_on_waiting_for_them() -> None:
    gather: Gather[Caller] = Gather()
    for _ in range(VAIN_MAX + RETRY):
        gather.expected = 2
        assert gather.arrive(caller("A")).kind == "wait"
        assert gather.arrive(caller("B")).kind == "commit"
        gather.take(9)
        gather.committed(2)
