# Generated from src/millstream/aio/stored_jobs.py by `make generate`: change that file, not this one.

"""The jobs of a store as threads look at them: lists by state and task, single jobs, and changes.

A job is a message whose header `task` names its task. No program need declare the task: operators look
at the jobs of every program. The store has no index by task, so one call scans a bounded number of jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from millstream.command import Session, Transact
from millstream.errors import Conflict, InvalidInput, NotFound
from millstream.jobs.cancelling import cancel_job, read_job
from millstream.jobs.description import (
    PEEKED,
    JobDetail,
    JobInfo,
    JobOutput,
    JobPage,
    ListedState,
    TaskCounts,
    describe_job,
    describe_peeked,
)
from millstream.jobs.driving import drive
from millstream.jobs.job_ids import JobPlace, job_id_of, place_of_job
from millstream.jobs.key_limits import (
    KEY_HEADER,
    KeyLimit,
    checked_key,
    limit_of,
    limit_shown,
)
from millstream.jobs.options import PRIORITY_HEADER
from millstream.jobs.output import output_of
from millstream.log.commands import GetBounds
from millstream.log.model.names import check_name
from millstream.queue import commands as c
from millstream.queue.model.group_limits import GroupLimit
from millstream.queue.model.message import CancelOutcome, Message, QueueInfo, Try, messages_of
from millstream.record import Record

SCANNED_MAX = 10_000
"""Messages that one call looks at, to find the jobs of a task."""

PEEKED_MAX = 500
"""Messages of one read: a read has the arguments of the jobs, too."""

COUNTED_MAX = 1_000
"""Jobs of a queue in each state that are counted by task."""

QUEUES_PAGE = 1_000


class StoredJobs:
    """The jobs of a store, of all programs."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def queues(self) -> list[QueueInfo]:
        """Return the queues that were made for jobs, in the order of their names."""
        found: list[QueueInfo] = []
        after = ""
        while True:
            page = self._session.execute(c.ListQueues(after, QUEUES_PAGE))
            found += [info for info in page if info.spec.priority_by == PRIORITY_HEADER]
            if len(page) < QUEUES_PAGE:
                return found
            after = page[-1].name

    def page(
        self,
        state: ListedState = "waiting",
        *,
        task: str | None = None,
        queue: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> JobPage:
        """Return a page of jobs in a state, newest first in each queue. `task` and `queue` select the jobs of a task and of a queue.

        `after` is `next` of the page before. A page of one task may be short, because a call looks at
        10,000 jobs at most; `next` is set then.
        """
        start = None if after is None else place_of_job(after)
        if queue is not None:
            names = [check_name(queue, "queue")]
        else:
            names = [info.name for info in self.queues()]
        jobs: list[JobInfo] = []
        scanned = 0
        for name in names:
            if start is not None and name < start.queue:
                continue
            last = start.put_id if start is not None and name == start.queue else -1
            peeked = PEEKED_MAX if task is not None else min(limit, PEEKED_MAX)
            while page := self._peek(name, state, last, peeked, is_needed=bool(queue)):
                for message in page:
                    last, scanned = message.claim_id, scanned + 1
                    info = describe_peeked(message, state)
                    if info is not None and task in (None, info.task):
                        jobs.append(info)
                    if len(jobs) >= limit or scanned >= SCANNED_MAX:
                        return JobPage(jobs=jobs, next=job_id_of(name, last))
        return JobPage(jobs=jobs, next=None)

    def tasks(self) -> list[TaskCounts]:
        """Count the jobs of each task by state.

        Of a state with more than 1,000 jobs in a queue, the newest 1,000 are counted by task, and the
        numbers are scaled to the number of jobs in the queue.
        """
        counts: dict[tuple[str, str], TaskCounts] = {}
        for info in self.queues():
            for state in PEEKED:
                self._count(info, state, counts)
        return [counts[key] for key in sorted(counts)]

    def _count(
        self, info: QueueInfo, state: ListedState, counts: dict[tuple[str, str], TaskCounts]
    ) -> None:
        last, scanned, by_task = -1, 0, Counter[str]()
        while scanned < COUNTED_MAX and (page := self._peek(info.name, state, last, PEEKED_MAX)):
            last, scanned = page[-1].claim_id, scanned + len(page)
            jobs = (describe_peeked(message, state) for message in page)
            by_task.update(job.task for job in jobs if job is not None)
        total = _count_in(info, state) if scanned >= COUNTED_MAX else scanned
        for task, count in by_task.items():
            of_task = counts.setdefault((task, info.name), TaskCounts(task=task, queue=info.name))
            is_estimated = total > scanned
            setattr(of_task, state, round(count * total / scanned) if is_estimated else count)
            of_task.is_estimated = of_task.is_estimated or is_estimated

    def get(self, id: str) -> JobDetail:
        """Return a job with its attempts; `NotFound` if it is unknown, or has ended and is forgotten."""
        job, _ = self._find(id)
        log = output_of(id)
        start, end = self._session.execute(GetBounds(log))
        if end:
            job.output = JobOutput(log=log, start_offset=start, end_offset=end)
        return job

    def cancel(self, id: str) -> CancelOutcome:
        """Cancel a job: True if it does not start, "requested" if it runs, and False if it has ended.

        A running job is asked to end, and is cancelled once its attempt is given back.
        """
        self._find(id)  # refuses a message that is no job
        return drive(cancel_job(place_of_job(id), self._session.limits), self._session.execute)

    def retry(self, id: str) -> None:
        """Try a failed job again, with all its attempts; `Conflict` if the job has not failed."""
        job, claim_id = self._find(id)
        count = 0
        if job.state == "failed" and claim_id is not None:
            count = self._session.execute(c.RedriveClaims(job.queue, [claim_id]))
        if not count:
            raise Conflict(
                f"job {id!r} is {job.state}, not failed: only a failed job is tried again", name=id
            )

    # Limits per key.

    def limited_queues(self, queue: str | None = None) -> list[str]:
        """Return the queues of tasks with limits per key; refuse a named queue without limits."""
        names = [info.name for info in self.queues() if info.spec.group_by == KEY_HEADER]
        if queue is not None and queue not in names:
            raise NotFound(
                f"there is no queue {queue!r} of a task with limits; these are: "
                f"{', '.join(names)[:300] or 'none'}",
                name=queue,
            )
        return names if queue is None else [queue]

    def limits(self, queues: Sequence[str]) -> list[KeyLimit]:
        """Return the keys with limits of their own, by queue and name."""
        return [
            limit_shown(key, queue, limit)
            for queue in queues
            for key, limit in self._session.execute(c.ListGroupLimits(queue)).items()
        ]

    def limit(
        self, key: object, *, running: int | None, per_minute: float | None, queues: Sequence[str]
    ) -> None:
        """Set the limits of a key in some queues, in one commit."""
        name, limit = limit_of(key, running, per_minute)
        if not queues:
            raise InvalidInput("no task has limits, so no key can have limits of its own")
        self._session.execute(Transact([c.LimitGroup(each, name, limit) for each in queues]))

    def remove_limit(self, key: object, *, queues: Sequence[str]) -> bool:
        """Remove the limits of a key in some queues; False if the key had no limits."""
        steps = [c.LimitGroup(queue, checked_key(key), GroupLimit()) for queue in queues]
        answers = self._session.execute(Transact(steps)) if steps else []
        return any(answers)

    def _find(self, id: str) -> tuple[JobDetail, int | None]:
        """Return a job, and the number of its message in the queue."""
        place = place_of_job(id)
        try:
            fate = self._session.execute(c.FindMessage(place.queue, place.put_id))
        except NotFound:
            raise no_job(id) from None
        record = self._record(place)
        if record is None:
            raise no_job(id)
        job = describe_job(id, place.queue, record, fate, self._tries(place, fate.claim_id))
        if job is None:
            raise no_job(id)
        return job, fate.claim_id

    def _peek(
        self, queue: str, state: ListedState, after: int, count: int, *, is_needed: bool = False
    ) -> list[Message]:
        """Return messages of a queue, newest first; none of a queue that was deleted meanwhile."""
        try:
            command = c.PeekMessages(queue, PEEKED[state], count, after, newest=True)
            lots = self._session.execute(command)
        except NotFound:
            if is_needed:
                raise
            return []
        return messages_of(lots)[::-1]

    def _record(self, place: JobPlace) -> Record | None:
        """Return the record of a job; None if the log has deleted the record."""
        return drive(read_job(place), self._session.execute)

    def _tries(self, place: JobPlace, claim_id: int | None) -> list[Try]:
        if claim_id is None:
            return []
        try:
            return self._session.execute(c.GetAttempts(place.queue, claim_id))
        except NotFound:
            return []  # the queue has forgotten the message meanwhile


def _count_in(info: QueueInfo, state: ListedState) -> int:
    """Return how many messages of a queue are in a state; 0 if the queue does not count them."""
    counts = {
        "waiting": info.available,
        "scheduled": info.delayed,
        "running": info.in_flight,
        "done": info.done,
        "failed": info.failed,
    }
    return counts.get(state, 0)


def no_job(id: str) -> NotFound:
    """Return the error for a job that is not there."""
    return NotFound(
        f"there is no job {id!r}: it was never put, or it has ended and is forgotten; `millstream job "
        "list` shows jobs",
        name=id,
    )
