"""Batches: their entries have distinct ids, and each succeeds or fails by itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from millstream.server.gateways.sqs.errors import SqsError

ENTRIES_MAX = 10

_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


class BatchEntry(Protocol):
    """An entry of a batch."""

    id: str | None


EntryKind = TypeVar("EntryKind", bound=BatchEntry)


def check_batch(kind: str, entries: Sequence[EntryKind]) -> Sequence[EntryKind]:
    """Return the entries of a batch; `kind` names them in the message of an error."""
    if not entries:
        raise SqsError("EmptyBatchRequest", f"There should be at least one {kind} in the request.")
    if len(entries) > ENTRIES_MAX:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {ENTRIES_MAX}. You have sent {len(entries)}.",
        )
    earlier_ids: set[str] = set()
    for entry in entries:
        name = entry.id or ""
        if not _ID.fullmatch(name):
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if name in earlier_ids:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {name} repeated.")
        earlier_ids.add(name)
    return entries


def failure(name: str, error: SqsError) -> dict[str, Any]:
    """Return the entry of an answer for an entry that failed."""
    return {
        "Id": name,
        "SenderFault": error.is_fault_of_sender,
        "Code": error.query_code,
        "Message": error.message,
    }


def of_entries(
    names: Sequence[str], results: Mapping[str, dict[str, Any] | SqsError]
) -> dict[str, Any]:
    """Return the answer of a batch, in the order of its entries."""
    answer: dict[str, Any] = {"Successful": [], "Failed": []}
    for name in names:
        result = results[name]
        if isinstance(result, SqsError):
            answer["Failed"].append(failure(name, result))
        else:
            answer["Successful"].append({"Id": name, **result})
    return {kind: entries for kind, entries in answer.items() if entries}
