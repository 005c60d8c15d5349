"""Names: a queue of SQS, its address and its ARN, and the queue of Millstream that stands behind it.

Queues of the server's own region and account have the same name here and there. Other queues have
their region behind the name, and their account behind the region: `orders@eu-west-1`,
`orders@us-east-1@210987654321`. No name in SQS has an `@`, so the names are never mixed up. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote, urlsplit

from millstream.server.gateways.sqs.errors import SqsError, invalid, no_queue

FIFO = ".fifo"
NAME_CHARS_MAX = 80
CACHED_CHARS_MAX = 500
"""The longest address that is kept with the queue that it names."""


_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_FIFO_NAME = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo")
_ACCOUNT = re.compile(r"[0-9]{12}", re.ASCII)
_REGION = re.compile(r"[a-z0-9-]{1,64}")
_ARN = re.compile(
    r"arn:aws[a-z-]*:sqs:([a-z0-9-]{1,64}):([0-9]{12}):([A-Za-z0-9_.-]{1,80})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class HomePlace:
    """The region and the account whose queues have plain names."""

    region: str = "us-east-1"
    account: str = "123456789012"


@dataclass(frozen=True, slots=True)
class QueueName:
    """A queue of SQS: its region, its account and its name."""

    region: str
    account: str
    name: str

    @property
    def is_fifo(self) -> bool:
        """Whether the queue keeps the order of its groups."""
        return self.name.endswith(FIFO)

    @property
    def arn(self) -> str:
        """The queue's ARN."""
        return f"arn:aws:sqs:{self.region}:{self.account}:{self.name}"

    def url(self, base: str) -> str:
        """Return the queue's address on a server."""
        return f"{base}/{self.account}/{self.name}"

    def stored(self, home: HomePlace) -> str:
        """Return the name of the queue in the store."""
        return self.name + suffix_of(self.region, self.account, home)


def suffix_of(region: str, account: str, home: HomePlace) -> str:
    """Return the end of the stored names of all queues of a region and an account."""
    if account != home.account:
        return f"@{region}@{account}"
    return "" if region == home.region else f"@{region}"


def is_account(text: str) -> bool:
    """Whether a text has the form of an account's id."""
    return _ACCOUNT.fullmatch(text) is not None


def is_region(text: str) -> bool:
    """Whether a text has the form of a region's name."""
    return _REGION.fullmatch(text) is not None


def is_queue_name(name: str) -> bool:
    """Whether a queue of SQS may have a name."""
    return _NAME.fullmatch(name) is not None or _FIFO_NAME.fullmatch(name) is not None


def check_queue_name(name: str) -> str:
    """Return a name that a new queue may have."""
    if not is_queue_name(name):
        raise invalid(
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )
    return name


def queue_of_url(url: str, region: str) -> QueueName:
    """Return the queue that an address names; only its path counts."""
    parse = _parse_url if len(url) <= CACHED_CHARS_MAX else _parse_url.__wrapped__
    return parse(url, region)


@lru_cache(maxsize=4_096)
def _parse_url(url: str, region: str) -> QueueName:
    """Do the work of `queue_of_url`: programs name the same few queues in each request."""
    try:
        path = urlsplit(url).path
    except ValueError:
        path = ""
    return queue_of_path(path, region)


def queue_of_path(path: str, region: str) -> QueueName:
    """Return the queue that a path `/ACCOUNT/NAME` names."""
    segments = path.strip("/").split("/")
    name = unquote(segments[-1])
    if len(segments) > 1 and not is_account(segments[-2]):
        raise SqsError("InvalidAddress", f"The address {path} is not valid for this endpoint.", 404)
    if len(segments) < 2 or not is_queue_name(name):
        raise no_queue()
    return QueueName(region, segments[-2], name)


def queue_of_arn(arn: str) -> QueueName | None:
    """Return the queue that an ARN names, or None if the ARN names no queue."""
    match = _ARN.fullmatch(arn)
    if match is None or not is_queue_name(match[3]):
        return None
    return QueueName(match[1], match[2], match[3])


def queue_of_stored(stored: str, home: HomePlace) -> QueueName | None:
    """Return the queue behind a name in the store; None if SQS has no such name."""
    name, *place = stored.split("@")
    if not is_queue_name(name) or len(place) > 2:
        return None
    region = place[0] if place else home.region
    account = place[1] if len(place) == 2 else home.account
    queue = QueueName(region, account, name)
    return queue if queue.stored(home) == stored else None
