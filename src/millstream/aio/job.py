"""A job as coroutines hold it: the handle that `put` returns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, Literal, TypeVar

from millstream.aio.log import Log
from millstream.aio.queue import Queue
from millstream.errors import NotFound
from millstream.jobs.cancelling import cancel_job
from millstream.jobs.description import SHOWN, UNFINISHED
from millstream.jobs.driving import drive_async
from millstream.jobs.errors import JobCancelled, JobFailed
from millstream.jobs.job_ids import JobPlace, job_id_of
from millstream.jobs.job_progress import JobProgress, decode_progress
from millstream.jobs.output import END_HEADER, output_of
from millstream.jobs.results import ResultType, decode_error
from millstream.numbers import checked_numbers
from millstream.queue.model.message import Fate
from millstream.record import Record, Seconds

R_co = TypeVar("R_co", covariant=True)

JobState = Literal["waiting", "scheduled", "running", "done", "failed", "cancelled", "unknown"]
"""`scheduled`: for later, or before its next attempt. `unknown`: never put, or ended and forgotten."""

STREAM_LOOK_S = 5.0
"""How often a reader of output looks whether the job has ended without a last record."""


@checked_numbers
class Job(Generic[R_co]):
    """A job, by its id. Every process with the store open can make this handle."""

    __slots__ = ("_put_id", "_queue", "_type", "was_duplicate")

    def __init__(
        self,
        queue: Queue,
        put_id: int,
        type: ResultType,
        *,
        was_duplicate: bool = False,
    ) -> None:
        self._queue = queue
        self._put_id = put_id
        self._type = type
        self.was_duplicate = was_duplicate
        """Whether `put` found this job of a unique task, and put no other."""

    @property
    def id(self) -> str:
        """The id of the job, for `jobs.get`."""
        return job_id_of(self._queue.name, self._put_id)

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def state(self) -> JobState:
        """Return the present state of the job."""
        return SHOWN.get((await self._fate()).state, "unknown")

    async def result(self, timeout: Seconds | None = None) -> R_co:
        """Wait for the end of the job, and return its result.

        Raises `JobFailed` or `JobCancelled` if the job ended so, `TimeoutError` if it has not ended
        after `timeout` seconds, and `NotFound` if it is unknown, or its result has expired.
        """
        try:
            fate = await self._queue.wait(self._put_id, timeout=timeout)
        except NotFound:
            raise NotFound(
                f"there is no job {self.id!r}: it was never put, or its result has expired",
                name=self.id,
            ) from None
        if fate is None:
            raise TimeoutError(f"job {self.id!r} has not ended within {timeout} seconds")
        result: R_co = self._result_of(fate)
        return result

    async def stream(self, start: int = 0) -> AsyncIterator[Record]:
        """Yield the output of the job, chunk by chunk: stored chunks at once, others as they come.

        Ends with the job. A record has an `offset`: to go on after a break, pass the offset of the
        last record plus one. If an attempt fails, the next attempt writes its chunks behind; the
        header `job-attempt` tells them apart.
        """
        log = Log(self._queue.session, output_of(self.id))
        offset = start
        while True:
            if not await log.wait(offset, timeout=STREAM_LOOK_S):
                if (await self._fate()).state not in UNFINISHED and not await log.wait(
                    offset, timeout=0
                ):
                    return  # it ended without output, or its worker died
                continue
            async for record in log.read(offset):
                if END_HEADER in record.headers:
                    return
                yield record
                offset = record.offset + 1

    async def progress(self) -> JobProgress | None:
        """Return the last progress of a running job, or None for a job without progress."""
        return decode_progress((await self._fate()).progress)

    async def cancel(self) -> bool:
        """Cancel the job, durably: a waiting job never starts, and a running job is asked to end.

        Returns False if the job has ended, or is unknown. A running job that returns a result is
        done.
        """
        session, place = self._queue.session, JobPlace(self._queue.name, self._put_id)
        return await drive_async(cancel_job(place, session.limits), session.execute) is not False

    async def _fate(self) -> Fate:
        try:
            return await self._queue.message(self._put_id)
        except NotFound:  # the queue
            return Fate(state="unknown")

    def _result_of(self, fate: Fate) -> Any:
        if fate.state == "cancelled":
            raise JobCancelled(f"job {self.id!r} was cancelled", id=self.id)
        if fate.state == "failed":
            error = decode_error(fate.error, fate.reason)
            raise JobFailed(
                f"job {self.id!r} has failed: {error.text}",
                id=self.id,
                kind=error.kind,
                trace=error.trace,
            )
        return self._type.decode(fate.result)
