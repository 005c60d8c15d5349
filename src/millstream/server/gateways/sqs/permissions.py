"""The actions on the permissions of queues: statements of a policy."""

from __future__ import annotations

import re

from msgspec.structs import replace

from millstream.server.gateways.sqs import shapes
from millstream.server.gateways.sqs.call import SqsCall
from millstream.server.gateways.sqs.errors import SqsError, invalid_value, missing
from millstream.server.gateways.sqs.names import is_account
from millstream.server.gateways.sqs.records import change_record
from millstream.server.gateways.sqs.settings import (
    PolicyStatement,
    has_statement,
    without_statement,
)

ACTIONS_MAX = 7
STATEMENTS_MAX = 20

PERMITTED = frozenset(
    {
        "*",
        "ChangeMessageVisibility",
        "DeleteMessage",
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "PurgeQueue",
        "ReceiveMessage",
        "SendMessage",
    }
)
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")


async def add_permission(call: SqsCall, request: shapes.AddPermissionRequest) -> None:
    """Add a statement to the queue's policy. The policy is kept and displayed; tokens decide rights."""
    queue = await call.queue(request.queue_url)
    label = request.label
    if not label:
        raise missing("Label")
    if not _LABEL.fullmatch(label):
        raise invalid_value(
            "Label", label[:100], "It has 1 to 80 alphanumeric characters, hyphens or underscores."
        )
    if not request.actions:
        raise missing("Actions")
    if (count := len(request.actions)) > ACTIONS_MAX:
        reason = f"{count} Actions were found, maximum allowed is {ACTIONS_MAX}."
        raise SqsError("OverLimit", reason, 403)
    if len(queue.record.permissions) >= STATEMENTS_MAX:
        reason = f"A policy has at most {STATEMENTS_MAX} statements."
        raise SqsError("OverLimit", reason, 403)
    for action in request.actions:
        if action not in PERMITTED:
            raise invalid_value(
                "ActionName",
                f"SQS:{action[:100]}",
                "Only the queue owner is allowed to invoke this action."
                if action
                else "must not be empty",
            )
    for account in request.accounts or ["[]"]:
        if not is_account(account):
            raise invalid_value("PrincipalId", account[:100], "Unable to verify.")
    if has_statement(queue.record, label):
        raise invalid_value("Label", label, "Already exists.")
    permission = PolicyStatement(request.accounts, request.actions)
    await change_record(
        call,
        queue,
        lambda record: replace(record, permissions={**record.permissions, label: permission}),
    )


async def remove_permission(call: SqsCall, request: shapes.RemovePermissionRequest) -> None:
    """Remove a statement from the queue's policy."""
    queue = await call.queue(request.queue_url)
    label = request.label
    if not label:
        raise missing("Label")
    if not has_statement(queue.record, label):
        raise invalid_value("Label", label[:100], "can't find label on existing policy.")
    await change_record(call, queue, lambda record: without_statement(record, label))
