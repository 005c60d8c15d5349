"""The plan of a claim: the tables of `plan_claim` and `next_step`, row by row."""

import pytest

from millstream.queue.model.grants import Granted
from millstream.queue.rules.claim_plan import (
    OVERTAKEN_MAX,
    ClaimFacts,
    ClaimPlan,
    ClaimRound,
    NextStep,
    next_step,
    plan_claim,
)


@pytest.mark.parametrize(
    ("missing", "routed_ahead", "keeps_up", "overtaken", "plan"),
    [
        (0, 5, True, 0, ClaimPlan.PLACED_ONLY),
        (2, 2, True, OVERTAKEN_MAX, ClaimPlan.ROUTED_AHEAD),
        (2, 1, True, OVERTAKEN_MAX, ClaimPlan.ARRIVALS),
        (2, 1, False, OVERTAKEN_MAX - 1, ClaimPlan.ROUTE),
        (2, 1, False, OVERTAKEN_MAX, ClaimPlan.PLACED_ONLY),
    ],
)
def test_the_first_plan_that_can_get_the_messages_is_chosen(
    missing: int, routed_ahead: int, keeps_up: bool, overtaken: int, plan: ClaimPlan
) -> None:
    assert plan_claim(ClaimFacts(missing, routed_ahead, keeps_up, overtaken)) is plan


def ended(
    plan: ClaimPlan = ClaimPlan.ROUTE,
    missing: int = 1,
    *,
    fresh: int = 0,
    is_overtaken: bool = False,
    is_cut_short: bool = False,
    is_fully_routed: bool = False,
    relied_on_ahead: bool = False,
    has_progress: bool = False,
    is_all_damaged: bool = False,
    has_messages: bool = False,
) -> ClaimRound:
    granted = Granted(
        [],
        fresh,
        0,
        0,
        is_overtaken=is_overtaken,
        is_cut_short=is_cut_short,
        is_fully_routed=is_fully_routed,
    )
    return ClaimRound(
        plan, missing, granted, relied_on_ahead, has_progress, is_all_damaged, has_messages
    )


@pytest.mark.parametrize(
    ("round_", "step"),
    [
        (ended(is_overtaken=True, is_all_damaged=True), NextStep.OVERTAKEN),
        (ended(missing=0, is_all_damaged=True), NextStep.DAMAGED),
        (ended(missing=0, has_progress=True, is_cut_short=True), NextStep.DONE),
        (ended(ClaimPlan.ARRIVALS, is_cut_short=True), NextStep.UNROUTED),
        (ended(ClaimPlan.ARRIVALS, is_fully_routed=True, has_progress=True), NextStep.DONE),
        (ended(is_cut_short=True), NextStep.BLOCKED),
        (ended(relied_on_ahead=True, has_messages=True), NextStep.MORE),
        (ended(relied_on_ahead=True, fresh=1), NextStep.DONE),
        (ended(has_progress=True), NextStep.MORE),
        (ended(has_progress=True, has_messages=True), NextStep.DONE),
        (ended(), NextStep.DONE),
    ],
)
def test_the_first_row_that_applies_decides_the_next_step(
    round_: ClaimRound, step: NextStep
) -> None:
    assert next_step(round_) is step


def test_a_step_without_time_left_gives_way_to_the_next_row() -> None:
    damaged = ended(is_all_damaged=True, is_cut_short=True, has_progress=True)
    assert next_step(damaged, (NextStep.DAMAGED,)) is NextStep.BLOCKED
    assert next_step(damaged, (NextStep.DAMAGED, NextStep.BLOCKED)) is NextStep.MORE
