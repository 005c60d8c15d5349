"""The table of actions: the name of each, the shape of its parameters, and what carries it out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from msgspec import Struct

from millstream.server.gateways.sqs import (
    ending,
    moves,
    permissions,
    publishing,
    queues,
    receiving,
    sending,
    shapes,
    sns_shapes,
    tags,
)
from millstream.server.gateways.sqs import topic_actions as topics
from millstream.server.gateways.sqs.xml import SNS_NAMESPACE, SQS_NAMESPACE, STS_NAMESPACE

Run = Callable[[Any, Any], Awaitable["dict[str, Any] | None"]]


class Action(NamedTuple):
    """One action of an API."""

    shape: type[Struct]
    run: Run
    namespace: str = SQS_NAMESPACE
    """The namespace of its answers in XML."""


ACTIONS: dict[str, Action] = {
    "AddPermission": Action(shapes.AddPermissionRequest, permissions.add_permission),
    "CancelMessageMoveTask": Action(shapes.CancelMessageMoveTaskRequest, moves.cancel_move),
    "ChangeMessageVisibility": Action(
        shapes.ChangeMessageVisibilityRequest, ending.change_visibility
    ),
    "ChangeMessageVisibilityBatch": Action(
        shapes.ChangeMessageVisibilityBatchRequest, ending.change_visibility_batch
    ),
    "CreateQueue": Action(shapes.CreateQueueRequest, queues.create_queue),
    "DeleteMessage": Action(shapes.DeleteMessageRequest, ending.delete_message),
    "DeleteMessageBatch": Action(shapes.DeleteMessageBatchRequest, ending.delete_message_batch),
    "DeleteQueue": Action(shapes.QueueRequest, queues.delete_queue),
    "GetQueueAttributes": Action(shapes.GetQueueAttributesRequest, queues.get_queue_attributes),
    "GetQueueUrl": Action(shapes.GetQueueUrlRequest, queues.get_queue_url),
    "ListDeadLetterSourceQueues": Action(
        shapes.ListDeadLetterSourceQueuesRequest, queues.list_dead_letter_sources
    ),
    "ListMessageMoveTasks": Action(shapes.ListMessageMoveTasksRequest, moves.list_moves),
    "ListQueueTags": Action(shapes.QueueRequest, tags.list_queue_tags),
    "ListQueues": Action(shapes.ListQueuesRequest, queues.list_queues),
    "PurgeQueue": Action(shapes.QueueRequest, queues.purge_queue),
    "ReceiveMessage": Action(shapes.ReceiveMessageRequest, receiving.receive_message),
    "RemovePermission": Action(shapes.RemovePermissionRequest, permissions.remove_permission),
    "SendMessage": Action(shapes.SendMessageRequest, sending.send_message),
    "SendMessageBatch": Action(shapes.SendMessageBatchRequest, sending.send_message_batch),
    "SetQueueAttributes": Action(shapes.SetQueueAttributesRequest, queues.set_queue_attributes),
    "StartMessageMoveTask": Action(shapes.StartMessageMoveTaskRequest, moves.start_move),
    "TagQueue": Action(shapes.TagQueueRequest, tags.tag_queue),
    "UntagQueue": Action(shapes.UntagQueueRequest, tags.untag_queue),
}
"""Every action, by its name."""

_SNS: dict[str, tuple[type[Struct], Run]] = {
    "CreateTopic": (sns_shapes.CreateTopicRequest, topics.create_topic),
    "DeleteTopic": (sns_shapes.TopicRequest, topics.delete_topic),
    "GetSubscriptionAttributes": (
        sns_shapes.SubscriptionRequest,
        topics.get_subscription_attributes,
    ),
    "GetTopicAttributes": (sns_shapes.TopicRequest, topics.get_topic_attributes),
    "ListSubscriptions": (sns_shapes.PageRequest, topics.list_subscriptions),
    "ListSubscriptionsByTopic": (
        sns_shapes.TopicPageRequest,
        topics.list_subscriptions_by_topic,
    ),
    "ListTagsForResource": (sns_shapes.ResourceRequest, topics.list_tags),
    "ListTopics": (sns_shapes.PageRequest, topics.list_topics),
    "Publish": (sns_shapes.PublishRequest, publishing.publish),
    "PublishBatch": (sns_shapes.PublishBatchRequest, publishing.publish_batch),
    "SetSubscriptionAttributes": (
        sns_shapes.SetSubscriptionAttributesRequest,
        topics.set_subscription_attributes,
    ),
    "SetTopicAttributes": (sns_shapes.SetTopicAttributesRequest, topics.set_topic_attributes),
    "Subscribe": (sns_shapes.SubscribeRequest, topics.subscribe),
    "TagResource": (sns_shapes.ResourceRequest, topics.tag_resource),
    "Unsubscribe": (sns_shapes.SubscriptionRequest, topics.unsubscribe),
    "UntagResource": (sns_shapes.ResourceRequest, topics.untag_resource),
}
ACTIONS |= {name: Action(shape, run, SNS_NAMESPACE) for name, (shape, run) in _SNS.items()}
ACTIONS["GetCallerIdentity"] = Action(
    sns_shapes.EmptyRequest, topics.get_caller_identity, STS_NAMESPACE
)
