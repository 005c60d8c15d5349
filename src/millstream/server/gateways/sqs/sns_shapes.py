"""The requests of the actions of SNS and STS, as the Query protocol's forms give them. Pure."""

from __future__ import annotations

from msgspec import Struct

from millstream.server.gateways.sqs.shapes import AttributeValues


class EmptyRequest(Struct):
    """A request without parameters."""


class TopicRequest(Struct, rename="pascal"):
    """A request that names a topic."""

    topic_arn: str | None = None


class CreateTopicRequest(Struct, rename="pascal"):
    """The parameters of CreateTopic."""

    name: str | None = None
    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}


class PageRequest(Struct, rename="pascal"):
    """The parameters of ListTopics and ListSubscriptions."""

    next_token: str | None = None


class TopicPageRequest(TopicRequest, rename="pascal"):
    """The parameters of ListSubscriptionsByTopic."""

    next_token: str | None = None


class SetTopicAttributesRequest(TopicRequest, rename="pascal"):
    """The parameters of SetTopicAttributes."""

    attribute_name: str | None = None
    attribute_value: str = ""


class SubscribeRequest(TopicRequest, rename="pascal"):
    """The parameters of Subscribe."""

    protocol: str | None = None
    endpoint: str | None = None
    attributes: dict[str, str] = {}


class SubscriptionRequest(Struct, rename="pascal"):
    """A request that names a subscription."""

    subscription_arn: str | None = None


class SetSubscriptionAttributesRequest(SubscriptionRequest, rename="pascal"):
    """The parameters of SetSubscriptionAttributes."""

    attribute_name: str | None = None
    attribute_value: str = ""


class TopicMessage(Struct, rename="pascal"):
    """The parts that a single message and an entry of a batch share."""

    message: str | None = None
    subject: str | None = None
    message_structure: str | None = None
    message_attributes: AttributeValues | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class PublishRequest(TopicMessage, rename="pascal"):
    """The parameters of Publish."""

    topic_arn: str | None = None
    target_arn: str | None = None


class TopicEntry(TopicMessage, rename="pascal"):
    """An entry of PublishBatch."""

    id: str | None = None


class PublishBatchRequest(TopicRequest, rename="pascal"):
    """The parameters of PublishBatch."""

    publish_batch_request_entries: list[TopicEntry] = []


class ResourceRequest(Struct, rename="pascal"):
    """A request about the tags of a topic."""

    resource_arn: str | None = None
    tags: dict[str, str] = {}
    tag_keys: list[str] = []
