"""Topics of SNS: each is a log, and its subscriptions stand in the log's metadata.

The log of the topic `orders` is `sns:orders`, with the region and account behind it as for queues. It
keeps what was published for some days, so every reader of logs can read it. A subscription names a
queue by its ARN; the queue need not exist yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import msgspec
from msgspec import Struct

from millstream.command import Transact
from millstream.errors import Conflict, TooLarge
from millstream.format import keys
from millstream.log.commands import SetMetadata
from millstream.log.model.metadata import MetadataState
from millstream.log.rules.operations import find_log
from millstream.server.gateways.sqs.call import SqsCall
from millstream.server.gateways.sqs.errors import SqsError
from millstream.server.gateways.sqs.names import HomePlace, queue_of_arn, suffix_of
from millstream.server.gateways.sqs.policy_views import PolicyRefused, refused_as
from millstream.store.state.view import View

PREFIX = "sns:"
METADATA = "sns"
"""The entry of the log's metadata that holds the topic."""

TRIES_MAX = 5
"""How often a change of a topic is tried again that another client overtook."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,256}|[A-Za-z0-9_-]{1,251}\.fifo", re.ASCII)
_ARN = re.compile(
    r"arn:aws[a-z-]*:sns:([a-z0-9-]{1,64}):([0-9]{12}):([A-Za-z0-9_.-]{1,256})(?::([0-9a-f-]{36}))?",
    re.ASCII,
)


class SnsError(SqsError):
    """A refused request of SNS, whose codes are the same in every protocol."""

    @property
    def query_code(self) -> str:
        """The code in the Query protocol."""
        return self.code


class Subscription(Struct, frozen=True, omit_defaults=True):
    """A queue that gets the messages of a topic."""

    endpoint: str
    """The queue's ARN."""
    attributes: dict[str, str] = {}

    @property
    def is_raw(self) -> bool:
        """Whether the queue gets the message itself, and not an envelope with it."""
        return self.attributes.get("RawMessageDelivery", "").lower() == "true"

    @property
    def dead_letters(self) -> str:
        """The ARN of the queue for messages that the endpoint does not get; empty without one."""
        with suppress(PolicyRefused):  # stored before policies were checked
            return dead_letters_of(self.attributes.get("RedrivePolicy", "{}"))
        return ""


@lru_cache(maxsize=1_024)
def dead_letters_of(policy: str) -> str:
    """Return the ARN that a redrive policy of a subscription names, or refuse the policy."""
    try:
        fields = msgspec.json.decode(policy, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise refused_as(f"RedrivePolicy: failed to parse JSON. {error}.") from None
    arn = fields.get("deadLetterTargetArn", "")
    if not isinstance(arn, str) or (arn and queue_of_arn(arn) is None):
        raise refused_as("RedrivePolicy: deadLetterTargetArn is an invalid arn")
    return arn


class TopicRecord(Struct, frozen=True, omit_defaults=True):
    """What SNS knows of a topic."""

    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}
    subscriptions: dict[str, Subscription] = {}
    """Subscriptions by the last part of their ARNs."""


@dataclass(frozen=True, slots=True)
class TopicName:
    """The region, the account and the name of a topic."""

    region: str
    account: str
    name: str

    @property
    def is_fifo(self) -> bool:
        """Whether the topic keeps the order of groups."""
        return self.name.endswith(".fifo")

    @property
    def arn(self) -> str:
        """The topic's ARN."""
        return f"arn:aws:sns:{self.region}:{self.account}:{self.name}"

    def log(self, home: HomePlace) -> str:
        """Return the name of the topic's log."""
        return PREFIX + self.name + suffix_of(self.region, self.account, home)


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A stored topic: its name, its log, and its record as text."""

    name: TopicName
    log: str
    text: str
    """The record as it is stored."""

    @property
    def record(self) -> TopicRecord:
        """The topic's record."""
        return _record_of(self.text)


@lru_cache(maxsize=512)
def _record_of(text: str) -> TopicRecord:
    return msgspec.json.decode(text, type=TopicRecord)


def text_of_topic(record: TopicRecord) -> str:
    """Return a record as it is stored."""
    return msgspec.json.encode(record).decode()


def is_topic_name(name: str) -> bool:
    """Whether a topic may have a name."""
    return _NAME.fullmatch(name) is not None


def topic_of_log(log: str, home: HomePlace) -> TopicName | None:
    """Return the topic behind the name of a log, if SNS made the log."""
    name, *place = log.removeprefix(PREFIX).split("@")
    if not log.startswith(PREFIX) or len(place) > 2 or not is_topic_name(name):
        return None
    topic = TopicName(
        place[0] if place else home.region, place[1] if len(place) == 2 else home.account, name
    )
    return topic if topic.log(home) == log else None


def parsed_arn(arn: str | None, parameter: str = "TopicArn") -> tuple[TopicName, str]:
    """Return the topic of an ARN, and the id of the subscription that the ARN ends with."""
    if (count := len((arn or "").split(":"))) < 6:
        raise wrong_parameter(
            f"{parameter} Reason: An ARN must have at least 6 elements, not {count}"
        )
    match = _ARN.fullmatch(arn or "")
    if match is None or not is_topic_name(match[3]):
        raise wrong_parameter(f"{parameter} Reason: no valid ARN of SNS: {(arn or '')[:200]}")
    return TopicName(match[1], match[2], match[3]), match[4] or ""


def wrong_parameter(reason: str) -> SnsError:
    """Return the error for a parameter that is missing or wrong."""
    return SnsError("InvalidParameter", f"Invalid parameter: {reason}")


def no_topic() -> SnsError:
    """Return the error for a missing topic."""
    return SnsError("NotFound", "Topic does not exist", 404)


def no_subscription() -> SnsError:
    """Return the error for a missing subscription."""
    return SnsError("NotFound", "Subscription does not exist", 404)


async def find_topic(call: SqsCall, name: TopicName) -> KnownTopic | None:
    """Return a topic; another process may have made it a moment ago."""
    store = call.client.core.store
    look = partial(_look, name=name, log=name.log(call.home))
    topic = store.view(look)
    if topic is None:
        await call.client.core.session.ask(store.refresh)
        topic = store.view(look)
    return topic


async def need_topic(call: SqsCall, arn: str | None) -> KnownTopic:
    """Return the topic of an ARN, or raise."""
    name, subscription = parsed_arn(arn)
    topic = None if subscription else await find_topic(call, name)
    if topic is None:
        raise no_topic()
    return topic


def _look(view: View, name: TopicName, log: str) -> KnownTopic | None:
    place = find_log(view, log)
    if place is None:
        return None
    entry = view.entity(keys.metadata(place[0]), MetadataState).entries.get(METADATA)
    if entry is None or not entry.present or not isinstance(entry.value, str):
        return None
    return KnownTopic(name, log, entry.value)


async def change_topic(
    call: SqsCall, topic: KnownTopic, alter: Callable[[TopicRecord], TopicRecord]
) -> None:
    """Replace the record of a topic by what `alter` makes of it, also beside other changes."""
    async with call.catalog.turn(topic.log):
        current = await find_topic(call, topic.name)
        if current is None:
            raise no_topic()
        await _change_topic(call, current, alter)


async def _change_topic(
    call: SqsCall, topic: KnownTopic, alter: Callable[[TopicRecord], TopicRecord]
) -> None:
    for tries_left in reversed(range(TRIES_MAX)):
        text = text_of_topic(alter(topic.record))
        step: Any = SetMetadata(topic.log, METADATA, text, expect=topic.text, compare=True)
        try:
            await call.execute(Transact([step]))
            return
        except TooLarge as error:
            raise SnsError(
                "SubscriptionLimitExceeded",
                f"The topic has too many settings: {error.message}",
                403,
            ) from None
        except Conflict:
            if not tries_left:
                raise
        await call.client.core.session.ask(call.client.core.store.refresh)
        fresh = await find_topic(call, topic.name)
        if fresh is None:
            raise no_topic()
        topic = fresh
