"""The pipeline: order, credit, sizes, and what becomes of requests whose connection is lost."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from millstream import Limits, Producer
from millstream.command import Command, Fold, Sql, Stats, Transact
from millstream.errors import (
    CannotOpen,
    Closed,
    InvalidInput,
    NoQuorum,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    TooLarge,
)
from millstream.format.packing import Single
from millstream.log.commands import Append, GetBounds, Truncate, WaitForOffset
from millstream.queue.commands import ClaimMessages, FinishClaims, PutMessages
from millstream.remote import pipeline as pipelines
from millstream.remote.pipeline import CONTENDED_WAIT_MS, WAIT_MS, PendingRequest, Pipeline
from millstream.remote.repeats import Interrupted, RepeatFate, delay_s, fate_of
from millstream.replica.sync.follow import WaitForChange
from millstream.wire import commands as wire

RECORD = Single(b"x", None, b"", None)
CLAIM = ClaimMessages("q", 1, None, "", None, [])


class Noted(PendingRequest):
    """A request that notes how it was settled."""

    def __init__(self, command: Command[Any]) -> None:
        super().__init__(command)
        self.wanted = True
        self.outcome: Any = None
        self.interrupts = 0
        """How often its thread is interrupted when it is about to be settled."""

    def is_wanted(self) -> bool:
        return self.wanted and self.outcome is None

    def settle(self, outcome: Any) -> None:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        assert self.outcome is None, "settled twice"
        self.outcome = outcome


def hello(*, requests: int = 4, frame_bytes: int = 1_000) -> wire.Hello:
    return wire.Hello(wire.VERSION, "store", Limits(), requests, frame_bytes)


def pipeline_of(*commands: Command[Any]) -> tuple[Pipeline, list[Noted]]:
    pipeline = Pipeline(waiting_max=100)
    asked = [Noted(command) for command in commands]
    for one in asked:
        pipeline.add(one)
    return pipeline, asked


def sent(pipeline: Pipeline, greeting: wire.Hello) -> list[tuple[int, Command[Any]]]:
    frame = pipeline.next_frame(greeting)
    return wire.decode_requests(frame) if frame else []


def test_what_waits_goes_out_together_in_order_within_the_credit() -> None:
    pipeline, asked = pipeline_of(*(GetBounds(name) for name in "abcdef"))
    frame = sent(pipeline, hello(requests=4))
    assert [command.log for _, command in frame] == [*"abcd"]  # type: ignore[attr-defined]
    assert sent(pipeline, hello(requests=4)) == []

    pipeline.answered(wire.decode_answers(wire.encode_answers([(frame[1][0], (0, 7))])))
    assert wire.decode_result(asked[1].command, asked[1].outcome) == (0, 7)
    assert [command.log for _, command in sent(pipeline, hello(requests=4))] == ["e"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("lost", [(), (1,), (0, 3)], ids=["none", "one", "two"])
def test_what_a_node_that_does_not_lead_refuses_goes_out_again_in_order(
    lost: tuple[int, ...],
) -> None:
    """Also if some of it was not answered before the connection was left."""
    appends = [Append("a", RECORD, producer=Producer("p", n)) for n in range(6)]
    pipeline, _ = pipeline_of(*appends)
    frame = sent(pipeline, hello(requests=4))
    refused = [number for at, (number, _) in enumerate(frame) if at not in lost]
    pipeline.answered([(number, NotLeader("not here", leader=None)) for number in refused])
    pipeline.lost("left")
    again = sent(pipeline, hello(requests=6))
    assert [command.producer.sequence for _, command in again] == [*range(6)]  # type: ignore[attr-defined]


class Minutes:
    """The pipeline's clock, set by a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(pipelines, "_seconds", lambda: self.now_s)


def refuse(pipeline: Pipeline, frame: list[tuple[int, Command[Any]]]) -> None:
    pipeline.answered([(number, NoQuorum("too few")) for number, _ in frame])


def test_what_finds_no_quorum_goes_out_again_in_order_after_a_pause_that_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Minutes(monkeypatch)
    appends = [Append("a", RECORD, producer=Producer("p", n)) for n in range(3)]
    pipeline, asked = pipeline_of(*appends)
    pauses_s = []
    for _ in range(8):
        frame = sent(pipeline, hello())
        assert [command for _, command in frame] == appends
        refuse(pipeline, frame)
        assert sent(pipeline, hello()) == []  # not at once
        pause_s = pipeline.pause_s()
        assert pause_s is not None
        pauses_s.append(pause_s)
        clock.now_s += pause_s - 0.001
        assert sent(pipeline, hello()) == []
        clock.now_s += 0.002
    assert len(pipeline) == 3
    for n, pause_s in enumerate(pauses_s):
        most_s = min(2.0, 0.1 * 2**n)
        assert most_s / 2 <= pause_s <= most_s
    pipeline.answered([(number, Raw(b"\x01")) for number, _ in sent(pipeline, hello())])
    assert [one.outcome for one in asked] == [Raw(b"\x01")] * 3
    assert pipeline.pause_s() is None
    pipeline.add(Noted(appends[0]))
    refuse(pipeline, sent(pipeline, hello()))
    sent(pipeline, hello())
    assert (pipeline.pause_s() or 0) <= 0.1  # a loss of its own begins with a short pause


def test_reads_go_on_while_writes_wait_for_a_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Minutes(monkeypatch)
    write, read, wait = Append("a", RECORD), GetBounds("a"), WaitForOffset("a", 1, 1_000)
    pipeline, _ = pipeline_of(write)
    refuse(pipeline, sent(pipeline, hello()))
    for command in (Append("b", RECORD), read, CLAIM, wait):
        pipeline.add(Noted(command))
    assert [command for _, command in sent(pipeline, hello(requests=9))] == [read, wait]
    clock.now_s += 0.1
    late = [command for _, command in sent(pipeline, hello(requests=9))]
    assert late == [write, Append("b", RECORD), CLAIM]


def test_without_a_quorum_for_too_long_the_caller_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since the request was first sent: what the server has waited counts, too."""
    clock = Minutes(monkeypatch)
    pipeline, asked = pipeline_of(Append("a", RECORD))
    frame = sent(pipeline, hello())
    clock.now_s += 29.9
    refuse(pipeline, frame)
    assert asked[0].outcome is None
    clock.now_s += 0.2
    refuse(pipeline, sent(pipeline, hello()))
    assert isinstance(asked[0].outcome, NoQuorum)
    assert len(pipeline) == 0


def test_a_wait_that_finds_no_quorum_is_handed_back_and_then_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Minutes(monkeypatch)
    waiting = ClaimMessages("q", 1, None, "", 1_000, [])
    pipeline, asked = pipeline_of(waiting)
    refuse(pipeline, sent(pipeline, hello()))
    assert isinstance(asked[0].outcome, Interrupted)
    assert isinstance(asked[0].outcome.refusal, NoQuorum)
    pipeline.add(Noted(waiting))
    assert sent(pipeline, hello()) == []
    clock.now_s += 0.1
    assert [command for _, command in sent(pipeline, hello())] == [waiting]


def test_what_is_held_back_is_bounded_and_settled_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Minutes(monkeypatch)
    pipeline, asked = pipeline_of(Append("a", RECORD))
    refuse(pipeline, sent(pipeline, hello()))
    more = [Noted(Append("a", RECORD)) for _ in range(100)]
    for one in more:
        pipeline.add(one)
        sent(pipeline, hello())
    assert isinstance(more[-1].outcome, Overloaded)
    pipeline.lost("gone")
    assert asked[0].outcome is None  # it was not carried out, so it is not in doubt
    pipeline.give_up(CannotOpen("away", path="x"))
    assert all(isinstance(one.outcome, CannotOpen) for one in [*asked, *more[:-1]])
    assert len(pipeline) == 0


def test_a_frame_is_no_larger_than_the_server_takes() -> None:
    pipeline, _ = pipeline_of(*(Append(name * 50, RECORD) for name in "abcd"))
    frames = []
    while frame := pipeline.next_frame(hello(frame_bytes=300)):
        frames.append(frame)
    assert len(frames) > 1
    assert all(len(frame) <= 300 for frame in frames)


def test_a_request_that_can_never_fit_is_refused_unsent() -> None:
    large = Single(b"x" * 2_000, None, b"", None)
    pipeline, asked = pipeline_of(Append("a", large), GetBounds("b"))
    assert [command for _, command in sent(pipeline, hello())] == [GetBounds("b")]
    assert isinstance(asked[0].outcome, TooLarge)
    assert asked[0].outcome.limit == 1_000


def test_too_many_that_wait_are_refused() -> None:
    _, asked = pipeline_of(*(GetBounds("a") for _ in range(101)))
    assert isinstance(asked[100].outcome, Overloaded)


def test_waits_leave_half_of_the_credit_to_others() -> None:
    pipeline, _ = pipeline_of(*(WaitForOffset("a", 1, 1) for _ in range(9)))
    assert len(sent(pipeline, hello(requests=4))) == 2
    pipeline.add(Noted(GetBounds("b")))
    assert [command for _, command in sent(pipeline, hello(requests=4))] == [GetBounds("b")]
    assert pipeline.wait_ms(hello(requests=4)) == CONTENDED_WAIT_MS
    assert pipeline.wait_ms(hello(requests=256)) == WAIT_MS


def test_a_wait_for_a_change_is_a_wait() -> None:
    pipeline, _ = pipeline_of(*(WaitForChange(1, 1_000) for _ in range(9)), GetBounds("b"))
    sent_first = [command for _, command in sent(pipeline, hello(requests=4))]
    assert sent_first == [GetBounds("b"), WaitForChange(1, 1_000), WaitForChange(1, 1_000)]


def test_what_nobody_wants_any_more_is_not_sent() -> None:
    pipeline, asked = pipeline_of(GetBounds("a"), GetBounds("b"))
    asked[0].wanted = False
    assert [command for _, command in sent(pipeline, hello())] == [GetBounds("b")]


@pytest.mark.parametrize(
    ("command", "fate"),
    [
        (GetBounds("a"), RepeatFate.ASK_AGAIN),
        (Stats(), RepeatFate.ASK_AGAIN),
        (Fold(), RepeatFate.ASK_AGAIN),
        (Append("a", RECORD, producer=Producer("p", 0)), RepeatFate.ASK_AGAIN),
        (WaitForOffset("a", 1, None), RepeatFate.WAIT_AGAIN),
        (WaitForOffset("a", 1, 0), RepeatFate.ASK_AGAIN),
        (WaitForChange(1, 1_000), RepeatFate.WAIT_AGAIN),
        (WaitForChange(1, 0), RepeatFate.ASK_AGAIN),
        (Append("a", RECORD), RepeatFate.TELL),
        (Append("a", RECORD, expect_end=0), RepeatFate.TELL),
        (Truncate("a", 1), RepeatFate.TELL),
        (Transact([Append("a", RECORD, producer=Producer("p", 0))]), RepeatFate.TELL),
        (FinishClaims("q", [(0, 1, 1)], "ack"), RepeatFate.TELL),
        (CLAIM, RepeatFate.TELL),
        (PutMessages("q", RECORD), RepeatFate.TELL),
    ],
)
def test_what_becomes_of_each_command(command: Command[Any], fate: RepeatFate) -> None:
    assert fate_of(command) is fate


def test_a_lost_connection_repeats_in_order_before_what_came_later() -> None:
    once = [Append("a", RECORD, producer=Producer("p", n)) for n in range(3)]
    pipeline, asked = pipeline_of(once[0], Truncate("a", 1), once[1], GetBounds("a"), once[2])
    sent(pipeline, hello(requests=4))
    pipeline.lost("gone")

    again = [command for _, command in sent(pipeline, hello(requests=9))]
    assert again == [once[0], once[1], GetBounds("a"), once[2]]
    assert isinstance(asked[1].outcome, OutcomeUnknown)


def test_a_lost_wait_is_handed_back() -> None:
    pipeline, asked = pipeline_of(WaitForOffset("a", 1, 1))
    sent(pipeline, hello())
    pipeline.lost("gone")
    assert isinstance(asked[0].outcome, Interrupted)


def test_a_request_that_breaks_every_connection_is_given_up() -> None:
    pipeline, asked = pipeline_of(GetBounds("a"), Append("a", RECORD, producer=Producer("p", 0)))
    for _ in range(11):
        assert asked[0].outcome is None
        assert len(sent(pipeline, hello())) == 2
        pipeline.lost("gone")
    assert isinstance(asked[0].outcome, CannotOpen)
    assert isinstance(asked[1].outcome, OutcomeUnknown)


def test_giving_up_tells_unsent_and_sent_apart() -> None:
    pipeline, asked = pipeline_of(
        Append("a", RECORD, producer=Producer("p", 0)), GetBounds("a"), Truncate("a", 1)
    )
    sent(pipeline, hello(requests=2))
    pipeline.lost("gone")
    pipeline.give_up(CannotOpen("away", path="x"))
    assert [type(one.outcome) for one in asked] == [OutcomeUnknown, CannotOpen, CannotOpen]
    assert len(pipeline) == 0


def test_closing_tells_a_claim_that_it_was_closed_unless_more_is_at_stake() -> None:
    pop = ClaimMessages("q", 1, None, "", None, [], pop=True)
    acking = ClaimMessages("q", 1, None, "", None, [(0, 1, 1)])
    pipeline, asked = pipeline_of(CLAIM, pop, acking)
    sent(pipeline, hello())
    pipeline.give_up(Closed("closed"))
    assert [type(one.outcome) for one in asked] == [Closed, OutcomeUnknown, OutcomeUnknown]


@pytest.mark.parametrize(
    "command",
    [
        Truncate("a", 1.5),  # type: ignore[arg-type]
        Truncate("a", 2**70),
        Append("a", RECORD, producer="p"),  # type: ignore[arg-type]
        Sql("SELECT 1", []),
        Transact([Sql("SELECT 1", [])]),
    ],
)
def test_what_a_server_would_not_take_is_refused_alone(command: Command[Any]) -> None:
    with pytest.raises(InvalidInput):
        Noted(command)


def test_delays_grow_up_to_a_bound_and_are_uneven() -> None:
    assert delay_s(0, 1.0) == 0
    assert [delay_s(n, 1.0) for n in (1, 2, 3, 50)] == [0.1, 0.2, 0.4, 5.0]
    assert delay_s(50, 0.0) == 2.5


@pytest.mark.parametrize("at", range(3))
def test_what_an_interrupt_left_between_its_answer_and_its_caller_is_not_forgotten(at: int) -> None:
    """Of several answers in one frame; the connection is given up after an interrupt."""
    commands = [GetBounds("a"), Append("a", RECORD), WaitForOffset("a", 1, 1_000)]
    pipeline, asked = pipeline_of(*commands)
    numbers = [number for number, _ in sent(pipeline, hello())]
    asked[at].interrupts = 1
    with pytest.raises(KeyboardInterrupt):
        pipeline.answered([(number, Raw(b"\x01")) for number in numbers])
    assert [one.outcome is not None for one in asked] == [number < at for number in range(3)]
    pipeline.lost("it was lost")
    repeated = [command for _, command in sent(pipeline, hello())]
    assert repeated == ([commands[0]] if at == 0 else [])
    if at <= 1:
        assert isinstance(asked[1].outcome, OutcomeUnknown)
    assert isinstance(asked[2].outcome, Interrupted)
    assert asked[0].outcome is not None or at == 0


@pytest.mark.parametrize("at", range(4))
def test_a_loss_that_was_interrupted_is_finished_by_a_second_call(at: int) -> None:
    commands = [Append("a", RECORD), GetBounds("a"), Truncate("a", 1), GetBounds("b")]
    pipeline, asked = pipeline_of(*commands)
    sent(pipeline, hello())
    asked[at].interrupts = 1
    try:
        pipeline.lost("it was lost")
    except KeyboardInterrupt:
        pipeline.lost("it was lost")
    assert [command for _, command in sent(pipeline, hello())] == [commands[1], commands[3]]
    assert [type(one.outcome) for one in asked[::2]] == [OutcomeUnknown] * 2


def test_an_interrupt_of_giving_up_leaves_nobody_behind() -> None:
    pipeline, asked = pipeline_of(GetBounds("a"), Append("a", RECORD), GetBounds("b"))
    sent(pipeline, hello(requests=2))
    asked[1].interrupts = 1
    with pytest.raises(KeyboardInterrupt):
        pipeline.give_up(CannotOpen("away"))
    assert len(pipeline) == 3
    for one in asked[:1]:
        one.outcome = None  # a call keeps its first outcome; here a second one would be an error
    pipeline.give_up(CannotOpen("away"))
    assert all(one.outcome is not None for one in asked)
    assert len(pipeline) == 0
