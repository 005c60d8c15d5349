"""Continuations: what the end of a job sets going, as JSON in the headers of its message.

A chain is a list of followers: the commit that acknowledges a job puts the next one, with the result
as its first argument. A group has a log with a record for each member that has ended; the commit that
ends the last member also puts the callback. A job is acknowledged once, so both happen once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from millstream.errors import InvalidInput
from millstream.header import HeaderValue
from millstream.jobs.key_limits import KEY_HEADER, LimitKey
from millstream.jobs.options import PRIORITY_HEADER
from millstream.jobs.results import CANCELLED_KIND, JobError

TASK_HEADER = "task"
"""The header of a message that names the task of the job."""

THEN_HEADER = "job-then"
PART_HEADER = "job-part"
RESULTS_HEADER = "job-results"
"""The header of a callback: the log of its group, and the number of members."""

LINKS = frozenset((THEN_HEADER, PART_HEADER, RESULTS_HEADER))
"""The headers of jobs in chains and groups."""

GROUP_LOG = "jobs.group."
"""The beginning of the names of groups' logs."""

MEMBERS_MAX = 10_000

OnFailure = Literal["fail", "collect"]


class FollowingCall(Struct, frozen=True, omit_defaults=True):
    """A job that is put when another job is done."""

    task: str
    queue: str
    first: str | None
    """The parameter that takes the result of the job before; None if the task has no parameter."""
    arguments: Raw
    """The other arguments, as a JSON object."""
    priority: int | None = None
    limit_key: LimitKey | None = None
    """Where the arguments have the key of the task's limits."""

    def value(self, result: bytes | None) -> bytes:
        """Return the arguments as JSON, with a result as the first argument."""
        if self.first is None:
            return bytes(self.arguments)
        partial_arguments = msgspec.json.decode(self.arguments, type=dict[str, Raw])
        return _encode({self.first: Raw(result or b"null"), **partial_arguments})


class GroupPart(Struct, frozen=True, omit_defaults=True):
    """The place of a job in a group."""

    log: str
    """The log with the outcomes of the group."""
    index: int
    size: int
    on_failure: OnFailure = "fail"
    callback: FollowingCall | None = None
    is_callback: bool = False
    """Whether the job is the callback itself, or in a chain: its last outcome is the outcome of all."""


class MemberOutcome(Struct, frozen=True, omit_defaults=True):
    """The outcome of a member, as a record of the group's log."""

    index: int
    result: Raw = Raw(b"null")
    error: JobError | None = None
    is_callback: bool = False
    job: str = ""
    """The id of a callback, or of a job of a chain, that ended without a result: it can run again."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the job was cancelled."""
        return self.error is not None and self.error.kind == CANCELLED_KIND


class Continuation(Struct, frozen=True):
    """What follows the end of a job."""

    followers: list[FollowingCall] = []  # msgspec copies it
    membership: GroupPart | None = None

    def headers(self, task: Mapping[str, HeaderValue]) -> dict[str, HeaderValue]:
        """Return the headers of a job with this continuation."""
        headers = dict(task)
        if self.followers:
            headers[THEN_HEADER] = _encode(self.followers).decode()
        if self.membership is not None:
            headers[PART_HEADER] = _encode(self.membership).decode()
        return headers

    def next_headers(self, value: bytes) -> dict[str, HeaderValue]:
        """Return the headers of the first follower with its arguments and the remaining followers."""
        return Continuation(self.followers[1:], self.membership).headers(
            headers_of(self.followers[0], value)
        )


_encode = msgspec.json.Encoder().encode
_decode_followers = msgspec.json.Decoder(list[FollowingCall]).decode
_decode_part = msgspec.json.Decoder(GroupPart).decode


def headers_of(follower: FollowingCall, value: bytes) -> dict[str, HeaderValue]:
    """Return the headers of a follower with its arguments, without its continuation."""
    headers: dict[str, HeaderValue] = {TASK_HEADER: follower.task}
    if follower.priority is not None:
        headers[PRIORITY_HEADER] = follower.priority
    if follower.limit_key is not None and (key := follower.limit_key.of(value)):
        headers[KEY_HEADER] = key
    return headers


def continuation_of(headers: Mapping[str, Any]) -> Continuation | None:
    """Return the continuation of a job, or None for a job outside of chains and groups."""
    then, membership = headers.get(THEN_HEADER), headers.get(PART_HEADER)
    if then is None and membership is None:
        return None
    return Continuation(
        [] if then is None else _decode_followers(str(then)),
        None if membership is None else _decode_part(str(membership)),
    )


def callback_headers(membership: GroupPart) -> dict[str, HeaderValue]:
    """Return the headers of the callback of a group."""
    assert membership.callback is not None
    place = GroupPart(membership.log, membership.size, membership.size, is_callback=True)
    callback = membership.callback
    own_headers = headers_of(callback, bytes(callback.arguments))
    headers = Continuation(membership=place).headers(own_headers)
    headers[RESULTS_HEADER] = membership.log
    return headers


def results_of_members(outcomes: Sequence[MemberOutcome]) -> bytes:
    """Return the results of a group as a JSON list in the order of its members.

    The entry of a failed member is an object with `kind`, `message` and `trace`.
    """
    by_index = {outcome.index: outcome for outcome in outcomes if not outcome.is_callback}
    return _encode([_entry(by_index[index]) for index in sorted(by_index)])


def _entry(outcome: MemberOutcome) -> Any:
    return outcome.result if outcome.error is None else outcome.error


def check_on_failure(on_failure: object) -> OnFailure:
    """Return a valid choice."""
    if on_failure not in ("fail", "collect"):
        raise InvalidInput(f"on_failure is 'fail' or 'collect', not {on_failure!r:.100}")
    return on_failure


encode_outcome = _encode
decode_outcome = msgspec.json.Decoder(MemberOutcome).decode
