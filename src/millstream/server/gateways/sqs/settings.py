"""The attributes of a queue: their values, their checks, and what they mean to our queue. Pure.

What our queue does not have itself (tags, policies, encryption keys, limits of the gateway) stands in a
record, as JSON in the metadata of the queue's log. A queue that was made by other means than SQS has
no record, and shows the attributes that its spec implies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from millstream.queue.model.backoff import Backoff
from millstream.queue.model.own_logs import inbox_of
from millstream.queue.model.spec import ATTEMPTS_MAX, QueueSpec
from millstream.server.gateways.sqs.attributes import DEDUPLICATION, GROUP
from millstream.server.gateways.sqs.errors import SqsError, invalid_value
from millstream.server.gateways.sqs.names import HomePlace, QueueName, queue_of_arn

METADATA = "sqs"
"""The entry of the log's metadata that holds the record."""

KiB = 1024
SIZE_MAX = 1024 * KiB
VISIBILITY_S_MAX = 43_200
DEDUPLICATION_S = 300.0
RETENTION_S = "345600"
"""How long a queue that SQS makes keeps its messages, unless its maker says."""

NO_LEASE_S = 0.001
"""The lease of a queue whose VisibilityTimeout is 0."""

DONE_S = 3_600.0
"""How long a queue remembers deleted messages: a repeated delete is harmless meanwhile."""

_WHOLE = re.compile(r"[0-9]{1,10}", re.ASCII)
_RANGES = {
    "DelaySeconds": (0, 900),
    "MaximumMessageSize": (KiB, SIZE_MAX),
    "MessageRetentionPeriod": (60, 1_209_600),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, VISIBILITY_S_MAX),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
}
_BOOLEANS = frozenset({"FifoQueue", "ContentBasedDeduplication", "SqsManagedSseEnabled"})
_CHOICES = {
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
_TEXTS = frozenset({"Policy", "KmsMasterKeyId", "RedrivePolicy", "RedriveAllowPolicy"})
ONLY_FIFO = frozenset(
    {"FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"}
)
SETTABLE = frozenset({*_RANGES, *_BOOLEANS, *_CHOICES, *_TEXTS})
COUNTS = frozenset(
    {
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesDelayed",
        "ApproximateNumberOfMessagesNotVisible",
    }
)
READABLE = SETTABLE | COUNTS | {"QueueArn", "CreatedTimestamp", "LastModifiedTimestamp"}
_DEFAULTS = {
    "MaximumMessageSize": str(SIZE_MAX),
    "MessageRetentionPeriod": RETENTION_S,
    "ReceiveMessageWaitTimeSeconds": "0",
    "SqsManagedSseEnabled": "true",
}
_FIFO_DEFAULTS = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
_IN_SPEC = frozenset({"VisibilityTimeout", "DelaySeconds"})
"""Attributes that our queue holds itself."""


class Redrive(Struct, rename="camel", forbid_unknown_fields=True):
    """A redrive policy."""

    dead_letter_target_arn: str
    max_receive_count: int


class RedriveAllow(Struct, rename="camel", forbid_unknown_fields=True):
    """A redrive-allow policy."""

    redrive_permission: str
    source_queue_arns: list[str] = []


class PolicyStatement(Struct):
    """A statement of a queue's policy that `AddPermission` made."""

    accounts: list[str]
    actions: list[str]


class QueueRecord(Struct, frozen=True, omit_defaults=True):
    """What SQS knows of a queue, beyond our spec of it."""

    attributes: dict[str, str] = {}
    """Attributes that were set and are not in the spec, as their texts."""
    tags: dict[str, str] = {}
    permissions: dict[str, PolicyStatement] = {}
    seed: str = ""
    """Random text that tells the messages of this queue from those of a deleted queue of its name."""
    modified_s: int = 0
    purges: int = 0
    """How often the queue was purged; a message is no repeat of a purged message."""

    def attribute(self, name: str) -> str | None:
        """Return the text of an attribute, or its default."""
        return self.attributes.get(name, _DEFAULTS.get(name))

    @property
    def size_max(self) -> int:
        """The longest message, in bytes."""
        return int(self.attributes.get("MaximumMessageSize", SIZE_MAX))

    @property
    def wait_s(self) -> int:
        """How long a receive waits that does not say."""
        return int(self.attributes.get("ReceiveMessageWaitTimeSeconds", 0))

    @property
    def retention_ms(self) -> int | None:
        """How long a message is kept; None for a queue that SQS has set no period for."""
        text = self.attributes.get("MessageRetentionPeriod")
        return None if text is None else int(text) * 1000

    @property
    def hashes_bodies(self) -> bool:
        """Whether a body stands for a missing deduplication id."""
        return self.attributes.get("ContentBasedDeduplication") == "true"

    @property
    def dedups_by_group(self) -> bool:
        """Whether each group has deduplication ids of its own."""
        return self.attributes.get("DeduplicationScope") == "messageGroup"

    @property
    def redrive(self) -> Redrive | None:
        """The redrive policy."""
        text = self.attributes.get("RedrivePolicy")
        return _redrive_of(text) if text else None

    @property
    def redrive_allow(self) -> RedriveAllow | None:
        """The redrive-allow policy."""
        text = self.attributes.get("RedriveAllowPolicy")
        return msgspec.json.decode(text, type=RedriveAllow) if text else None


NO_RECORD = QueueRecord()


@lru_cache(maxsize=4_096)
def record_of(text: str | None) -> QueueRecord:
    """Return the record of a queue as it is stored; the empty record for None."""
    return NO_RECORD if text is None else msgspec.json.decode(text, type=QueueRecord)


def text_of(record: QueueRecord) -> str:
    """Return a record as it is stored."""
    return msgspec.json.encode(record).decode()


@lru_cache(maxsize=256)
def _redrive_of(text: str) -> Redrive:
    return msgspec.json.decode(text, type=Redrive, strict=False)


def checked_settings(attributes: Mapping[str, str], *, is_fifo: bool) -> dict[str, str]:
    """Return settable attributes with checked texts; an empty policy stands for its removal."""
    checked = {}
    for name, value in attributes.items():
        if name not in SETTABLE:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        if name in ONLY_FIFO and not is_fifo:
            if name == "FifoQueue":
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
            raise SqsError(
                "InvalidAttributeName",
                f"You can specify the {name} only when FifoQueue is set to true.",
            )
        checked[name] = _checked_value(name, str(value))
    if is_fifo and checked.get("FifoQueue", "true") != "true":
        raise _wrong("FifoQueue", "Modifying queue type is not supported.")
    is_per_group = checked.get("FifoThroughputLimit") == "perMessageGroupId"
    if is_per_group and checked.get("DeduplicationScope") == "queue":
        raise SqsError(
            "InvalidAttributeValue",
            "FifoThroughputLimit perMessageGroupId needs DeduplicationScope messageGroup.",
        )
    if checked.get("KmsMasterKeyId") and checked.get("SqsManagedSseEnabled") == "true":
        raise SqsError(
            "InvalidAttributeName",
            "You can use one type of server-side encryption (SSE) at one time. You can either enable "
            "KMS SSE or SQS SSE.",
        )
    return checked


def _checked_value(name: str, value: str) -> str:
    if name in _RANGES:
        low, high = _RANGES[name]
        if not _WHOLE.fullmatch(value) or not low <= int(value) <= high:
            raise _wrong(name, f"Must be an integer from {low} to {high}, not {value[:100]!r}.")
        return str(int(value))
    if name in _BOOLEANS:
        if value.lower() not in ("true", "false"):
            raise _wrong(name, f"Must be true or false, not {value[:100]!r}.")
        return value.lower()
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise _wrong(name, f"Must be one of {', '.join(_CHOICES[name])}, not {value[:100]!r}.")
        return value
    if not value:
        return ""
    if name == "RedrivePolicy":
        return _checked_redrive(value)
    if name == "RedriveAllowPolicy":
        return _checked_allow(value)
    if name == "Policy":
        _check_json(name, value)
    return value


def _checked_redrive(value: str) -> str:
    fields = _redrive_fields(value)
    for name in ("deadLetterTargetArn", "maxReceiveCount"):
        if name not in fields:
            reason = f"Redrive policy does not contain mandatory attribute: {name}."
            raise _wrong_policy("RedrivePolicy", value, reason)
    try:
        policy = msgspec.convert(fields, Redrive, strict=False)
    except msgspec.ValidationError as error:
        raise _wrong_policy("RedrivePolicy", value, f"{error}.") from None
    if not 1 <= policy.max_receive_count <= 1_000:
        reason = (
            f"Invalid value for maxReceiveCount: {policy.max_receive_count}, valid values are from "
            "1 to 1000 both inclusive."
        )
        raise _wrong_policy("RedrivePolicy", value, reason)
    if queue_of_arn(policy.dead_letter_target_arn) is None:
        raise _wrong_policy("RedrivePolicy", value, "Invalid value for deadLetterTargetArn.")
    return msgspec.json.encode(policy).decode()


def _redrive_fields(value: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.MsgspecError:
        reason = "Redrive policy is not a valid JSON map."
        raise _wrong_policy("RedrivePolicy", value, reason) from None


def _checked_allow(value: str) -> str:
    def wrong(reason: str) -> SqsError:
        return _wrong_policy("RedriveAllowPolicy", value, reason)

    try:
        policy = msgspec.json.decode(value, type=RedriveAllow)
    except msgspec.MsgspecError:
        raise wrong("It is not a valid JSON map.") from None
    if policy.redrive_permission not in ("allowAll", "denyAll", "byQueue"):
        raise wrong("redrivePermission is allowAll, denyAll or byQueue.")
    if (policy.redrive_permission == "byQueue") != bool(policy.source_queue_arns):
        raise wrong("sourceQueueArns belongs to redrivePermission byQueue.")
    arns = policy.source_queue_arns
    if len(arns) > 10 or any(queue_of_arn(arn) is None for arn in arns):
        raise wrong("sourceQueueArns has 1 to 10 ARNs of queues.")
    if not policy.source_queue_arns:
        return msgspec.json.encode({"redrivePermission": policy.redrive_permission}).decode()
    return msgspec.json.encode(policy).decode()


def _check_json(name: str, value: str) -> None:
    try:
        if not isinstance(msgspec.json.decode(value), dict):
            raise ValueError
    except (msgspec.MsgspecError, ValueError):
        raise _wrong(name, "It is not a valid JSON map.") from None


def _wrong_policy(name: str, value: str, reason: str) -> SqsError:
    """Return the error for a policy of redrives, which AWS calls a wrong parameter."""
    return invalid_value(name, value[:500], reason)


def _wrong(name: str, reason: str) -> SqsError:
    return SqsError(
        "InvalidAttributeValue",
        f"Invalid value for the parameter {name}. Reason: {reason}",
    )


def altered_record(record: QueueRecord, changes: Mapping[str, str], *, now_s: int) -> QueueRecord:
    """Return a record after changes of attributes."""
    attributes = dict(record.attributes)
    for name, value in changes.items():
        if name in _IN_SPEC:
            continue
        if value == "" and name in _TEXTS:
            attributes.pop(name, None)
        else:
            attributes[name] = value
    if changes.get("SqsManagedSseEnabled") == "true":
        attributes.pop("KmsMasterKeyId", None)
    return replace(record, attributes=attributes, modified_s=now_s)


def altered_spec(
    spec: QueueSpec, record: QueueRecord, changes: Mapping[str, str], *, home: HomePlace
) -> QueueSpec:
    """Return our spec of a queue after changes of attributes; `record` has the changes already."""
    values: dict[str, Any] = {}
    if "VisibilityTimeout" in changes:
        values["lease"] = max(NO_LEASE_S, float(changes["VisibilityTimeout"]))
        values["lease_max"] = max(spec.lease_max, float(VISIBILITY_S_MAX))
    if "DelaySeconds" in changes:
        values["delay"] = float(changes["DelaySeconds"])
    if "RedrivePolicy" in changes:
        redrive = record.redrive
        values["max_attempts"] = ATTEMPTS_MAX if redrive is None else redrive.max_receive_count
        values["dead_letter"] = "" if redrive is None else dead_letter_of(redrive, home)
    return replace(spec, **values)


def dead_letter_of(redrive: Redrive, home: HomePlace) -> str:
    """Return the log to which failed messages go: the inbox of the dead-letter queue."""
    target = queue_of_arn(redrive.dead_letter_target_arn)
    return "" if target is None else inbox_of(target.stored(home))


def new_spec(name: QueueName) -> QueueSpec:
    """Return our spec of a new queue with all attributes at their defaults."""
    spec = QueueSpec(
        max_attempts=ATTEMPTS_MAX,
        lease=30.0,
        lease_max=float(VISIBILITY_S_MAX),
        backoff=Backoff(kind="fixed", first=0.0, jitter=0.0),
        done_retention=DONE_S,
    )
    if not name.is_fifo:
        return spec
    return replace(
        spec,
        group_by=GROUP,
        group_in_flight=1,
        dedup_by=DEDUPLICATION,
        dedup_window=DEDUPLICATION_S,
    )


def fair_spec(spec: QueueSpec) -> QueueSpec:
    """Return the spec of a standard queue whose groups share the consumers fairly."""
    return replace(spec, group_by=GROUP, group_in_flight=0)


def displayed_settings(
    name: QueueName, spec: QueueSpec, record: QueueRecord, created_s: int
) -> dict[str, str]:
    """Return all attributes of a queue except the counts, by name."""
    lease = 0 if spec.lease < 1 else int(spec.lease)
    displayed = {
        **_DEFAULTS,
        **(_FIFO_DEFAULTS if name.is_fifo else {}),
        "VisibilityTimeout": str(lease),
        "DelaySeconds": str(int(spec.delay)),
        **record.attributes,
        "QueueArn": name.arn,
        "CreatedTimestamp": str(created_s),
        "LastModifiedTimestamp": str(record.modified_s or created_s),
    }
    if policy := policy_of(name, record):
        displayed["Policy"] = policy
    if "KmsMasterKeyId" in displayed:
        displayed.setdefault("KmsDataKeyReusePeriodSeconds", "300")
        displayed["SqsManagedSseEnabled"] = "false"
    return displayed


def policy_of(name: QueueName, record: QueueRecord) -> str:
    """Return the policy of a queue: as it was set, with the statements of its permissions."""
    text = record.attributes.get("Policy", "")
    if not record.permissions:
        return text
    policy, statements = _read_policy(text)
    for label, permission in record.permissions.items():
        actions = [f"SQS:{action}" for action in permission.actions]
        accounts = [f"arn:aws:iam::{account}:root" for account in permission.accounts]
        statements.append(
            {
                "Sid": label,
                "Effect": "Allow",
                "Principal": {"AWS": accounts[0] if len(accounts) == 1 else accounts},
                "Action": actions[0] if len(actions) == 1 else actions,
                "Resource": name.arn,
            }
        )
    head = {"Version": "2008-10-17", "Id": f"{name.arn}/SQSDefaultPolicy"}
    return msgspec.json.encode({**head, **policy, "Statement": statements}).decode()


def _read_policy(text: str) -> tuple[dict[str, Any], list[Any]]:
    """Return a policy as it was set, and its statements."""
    policy: dict[str, Any] = msgspec.json.decode(text) if text else {}
    statements = policy.get("Statement", [])
    return policy, statements if isinstance(statements, list) else [statements]


def _has_label(statement: Any, label: str) -> bool:
    return isinstance(statement, dict) and statement.get("Sid") == label


def has_statement(record: QueueRecord, label: str) -> bool:
    """Whether a statement of a queue's policy has a label, added or set with the policy."""
    _, statements = _read_policy(record.attributes.get("Policy", ""))
    return label in record.permissions or any(_has_label(each, label) for each in statements)


def without_statement(record: QueueRecord, label: str) -> QueueRecord:
    """Return a record without the statements of a label."""
    attributes = dict(record.attributes)
    policy, statements = _read_policy(attributes.get("Policy", ""))
    remaining = [each for each in statements if not _has_label(each, label)]
    if len(remaining) < len(statements):
        policy["Statement"] = remaining
        attributes["Policy"] = msgspec.json.encode(policy).decode()
        if not remaining:
            del attributes["Policy"]
    permissions = {each: entry for each, entry in record.permissions.items() if each != label}
    return replace(record, attributes=attributes, permissions=permissions)


def selected_attributes(names: list[str]) -> frozenset[str]:
    """Return the attributes that a request names, or raise for an unknown name."""
    for name in names:
        if name != "All" and name not in READABLE:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
    return READABLE if "All" in names else frozenset(names)


def differing(requested: Mapping[str, str], displayed: Mapping[str, str]) -> str | None:
    """Return the first attribute of a repeated creation that differs from the queue's; or None."""
    for name, value in requested.items():
        if value != displayed.get(name, ""):
            return name
    return None
