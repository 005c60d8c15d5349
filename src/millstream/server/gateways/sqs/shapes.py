"""The requests of the actions of SQS, as both protocols decode them. Pure.

Every field may be absent, because a missing parameter has an error code of its own.
"""

from __future__ import annotations

from msgspec import Struct, field


class AttributeValue(Struct, rename="pascal"):
    """An attribute of a message, as a client sends it."""

    data_type: str | None = None
    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None


AttributeValues = dict[str, AttributeValue]


class QueueRequest(Struct, rename="pascal"):
    """A request that names a queue."""

    queue_url: str | None = None


class CreateQueueRequest(Struct, rename="pascal"):
    """The parameters of CreateQueue."""

    queue_name: str | None = None
    attributes: dict[str, str] = {}
    tags: dict[str, str] = field(name="tags", default_factory=dict)


class GetQueueUrlRequest(Struct, rename="pascal"):
    """The parameters of GetQueueUrl."""

    queue_name: str | None = None
    queue_owner: str | None = field(name="QueueOwnerAWSAccountId", default=None)


class ListQueuesRequest(Struct, rename="pascal"):
    """The parameters of ListQueues."""

    queue_name_prefix: str = ""
    next_token: str | None = None
    max_results: int | None = None


class GetQueueAttributesRequest(QueueRequest, rename="pascal"):
    """The parameters of GetQueueAttributes."""

    attribute_names: list[str] = []


class SetQueueAttributesRequest(QueueRequest, rename="pascal"):
    """The parameters of SetQueueAttributes."""

    attributes: dict[str, str] = {}


class TagQueueRequest(QueueRequest, rename="pascal"):
    """The parameters of TagQueue."""

    tags: dict[str, str] | None = None


class UntagQueueRequest(QueueRequest, rename="pascal"):
    """The parameters of UntagQueue."""

    tag_keys: list[str] | None = None


class AddPermissionRequest(QueueRequest, rename="pascal"):
    """The parameters of AddPermission."""

    label: str | None = None
    accounts: list[str] = field(name="AWSAccountIds", default_factory=list)
    actions: list[str] = []


class RemovePermissionRequest(QueueRequest, rename="pascal"):
    """The parameters of RemovePermission."""

    label: str | None = None


class ListDeadLetterSourceQueuesRequest(QueueRequest, rename="pascal"):
    """The parameters of ListDeadLetterSourceQueues."""

    next_token: str | None = None
    max_results: int | None = None


class MessageParameters(Struct, rename="pascal"):
    """The parts that a single message and an entry of a batch share."""

    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: AttributeValues | None = None
    message_system_attributes: AttributeValues | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageRequest(MessageParameters, rename="pascal"):
    """The parameters of SendMessage."""

    queue_url: str | None = None


class SendEntry(MessageParameters, rename="pascal"):
    """An entry of a batch."""

    id: str | None = None


class SendMessageBatchRequest(QueueRequest, rename="pascal"):
    """The parameters of SendMessageBatch."""

    entries: list[SendEntry] = []


class ReceiveMessageRequest(QueueRequest, rename="pascal"):
    """The parameters of ReceiveMessage."""

    attribute_names: list[str] = []
    message_system_attribute_names: list[str] = []
    message_attribute_names: list[str] = []
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class DeleteMessageRequest(QueueRequest, rename="pascal"):
    """The parameters of DeleteMessage."""

    receipt_handle: str | None = None


class DeleteEntry(Struct, rename="pascal"):
    """An entry of a batch."""

    id: str | None = None
    receipt_handle: str | None = None


class DeleteMessageBatchRequest(QueueRequest, rename="pascal"):
    """The parameters of DeleteMessageBatch."""

    entries: list[DeleteEntry] = []


class ChangeMessageVisibilityRequest(QueueRequest, rename="pascal"):
    """The parameters of ChangeMessageVisibility."""

    receipt_handle: str | None = None
    visibility_timeout: int | None = None


class VisibilityEntry(Struct, rename="pascal"):
    """An entry of a batch."""

    id: str | None = None
    receipt_handle: str | None = None
    visibility_timeout: int | None = None


class ChangeMessageVisibilityBatchRequest(QueueRequest, rename="pascal"):
    """The parameters of ChangeMessageVisibilityBatch."""

    entries: list[VisibilityEntry] = []


class StartMessageMoveTaskRequest(Struct, rename="pascal"):
    """The parameters of StartMessageMoveTask."""

    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class CancelMessageMoveTaskRequest(Struct, rename="pascal"):
    """The parameters of CancelMessageMoveTask."""

    task_handle: str | None = None


class ListMessageMoveTasksRequest(Struct, rename="pascal"):
    """The parameters of ListMessageMoveTasks."""

    source_arn: str | None = None
    max_results: int | None = None
