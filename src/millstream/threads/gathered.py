# Generated from src/millstream/aio/gathered.py by `make generate`: change that file, not this one.

"""The handle of a chain or a group, as threads hold it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from millstream.errors import NotFound
from millstream.jobs.continuation import (
    GROUP_LOG,
    MemberOutcome,
    decode_outcome,
    results_of_members,
)
from millstream.jobs.errors import JobCancelled, JobFailed
from millstream.jobs.job_ids import place_of_job
from millstream.numbers import checked_numbers
from millstream.record import Seconds, to_ms
from millstream.threads.database import Millstream

R_co = TypeVar("R_co", covariant=True)


@checked_numbers
class GatheredJobs(Generic[R_co]):
    """A chain or a group, by its id. Every process with the store open can make this handle."""

    def __init__(self, ms: Millstream, id: str) -> None:
        self._ms = ms
        self.id = id
        """The id, for `jobs.gathered`."""

    def __repr__(self) -> str:
        return f"GatheredJobs({self.id!r})"

    def done(self) -> int:
        """Return how many members have ended."""
        return self._ms.log(f"{GROUP_LOG}{self.id}").end_offset()

    def result(self, timeout: Seconds | None = None) -> R_co:
        """Wait for the end, and return the last result of a chain, the result of the callback, or the
        list of all results.

        Raises `JobFailed` or `JobCancelled` if a job ended so that the others need, and
        `TimeoutError` after `timeout`. If a failed callback, or a failed job of a chain, is tried
        again, its new end is waited for.
        """
        log = self._ms.log(f"{GROUP_LOG}{self.id}")
        shape = log.metadata.all().get("group")
        if shape is None:
            raise NotFound(
                f"there is no chain or group {self.id!r}: it was never put, or its result has expired",
                name=self.id,
            )
        clock = self._ms.session.clock
        until_s = None if timeout is None else clock.seconds() + to_ms(timeout, "timeout") / 1000
        outcomes: list[MemberOutcome] = []
        while True:
            for record in log.read(len(outcomes)):
                outcomes.append(decode_outcome(record.value or b""))
            if not (outcomes and self._is_tried_again(outcomes[-1])):
                decided, result = _decision(self.id, shape, outcomes)
                if decided:
                    answer: R_co = result
                    return answer
            left_s = None if until_s is None else max(0.0, until_s - clock.seconds())
            if not log.wait(len(outcomes), timeout=left_s):
                raise TimeoutError(f"{self.id!r} has not ended within {timeout} seconds")

    def _is_tried_again(self, outcome: MemberOutcome) -> bool:
        """Whether the job of an outcome without a result has not failed any more."""
        if outcome.error is None or not outcome.job:
            return False
        place = place_of_job(outcome.job)
        try:
            fate = self._ms.queue(place.queue).message(place.put_id)
        except NotFound:
            return False  # the queue was deleted
        return fate.state not in ("failed", "cancelled", "unknown")


def _decision(id: str, shape: dict[str, Any], outcomes: list[MemberOutcome]) -> tuple[bool, Any]:
    """Return whether the outcomes so far decide the result, and the result; raise for a failure."""
    if outcomes and outcomes[-1].is_callback:
        return True, _result_of(id, outcomes[-1])
    is_complete = len(outcomes) == shape["size"]
    if shape["is_chain"]:
        return is_complete, _result_of(id, outcomes[0]) if is_complete else None
    failed = next((outcome for outcome in outcomes if outcome.error is not None), None)
    if failed is not None and shape["on_failure"] == "fail":
        _result_of(id, failed)
    if shape["has_callback"] or not is_complete:
        return False, None
    return True, msgspec.json.decode(results_of_members(outcomes))


def _result_of(id: str, outcome: MemberOutcome) -> Any:
    if outcome.error is not None and outcome.is_cancelled:
        raise JobCancelled(f"{id!r} has no result: a job was {outcome.error.message}", id=id)
    if outcome.error is not None:
        raise JobFailed(
            f"{id!r} has failed: {outcome.error.text}",
            id=id,
            kind=outcome.error.kind,
            trace=outcome.error.trace,
        )
    return msgspec.json.decode(outcome.result)
