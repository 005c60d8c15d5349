"""Amazon SQS, or a server with its protocol: messages are received, stored, then deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from millstream.errors import InvalidInput
from millstream.exchange.foreign.message import ForeignMessage, needed
from millstream.header import HeaderValue

HIDDEN_S = 300
"""How long SQS hides a received message; a message that was not deleted comes back afterwards."""

RECEIVED_MAX = 10
"""The most messages that SQS returns at once."""

WAIT_S = 1
"""How long SQS looks for messages on all of its servers."""


class SqsQueue:
    """A queue at an address such as https://sqs.eu-west-1.amazonaws.com/123456789012/mail."""

    def __init__(self, address: str) -> None:
        boto3 = needed("boto3", "sqs")
        place = urlsplit(address)
        if place.scheme not in ("http", "https") or not place.path.strip("/"):
            raise InvalidInput(
                f"the source of --from sqs is the address of a queue, such as "
                f"https://sqs.eu-west-1.amazonaws.com/123456789012/mail, not {address!r:.200}"
            )
        self._errors: Any = needed("botocore.exceptions", "sqs")
        self._address = address
        labels = (place.hostname or "").split(".")
        region = labels[1] if len(labels) > 2 and labels[0] == "sqs" else None
        try:
            self._client: Any = boto3.client(
                "sqs",
                endpoint_url=f"{place.scheme}://{place.netloc}",
                **({"region_name": region} if region else {}),
            )
        except self._errors.BotoCoreError as error:
            raise InvalidInput(
                f"SQS: {str(error).rstrip('.')}; boto3 reads the region from AWS_DEFAULT_REGION"
            ) from error

    def take(self, count: int) -> Sequence[ForeignMessage]:
        """Receive messages; SQS hides them from other consumers for a while."""
        answer = self._call(
            self._client.receive_message,
            MaxNumberOfMessages=min(count, RECEIVED_MAX),
            VisibilityTimeout=HIDDEN_S,
            WaitTimeSeconds=WAIT_S,
            AttributeNames=["All"],
            MessageAttributeNames=["All"],
        )
        return [self._message(message) for message in answer.get("Messages", [])]

    def _message(self, message: Any) -> ForeignMessage:
        attributes = message.get("Attributes", {})
        headers: dict[str, HeaderValue] = {
            "sqs-message-id": message["MessageId"],
            "sqs-sent": int(attributes.get("SentTimestamp", 0)),
        }
        if "MessageGroupId" in attributes:
            headers["sqs-group"] = attributes["MessageGroupId"]
        for name, attribute in message.get("MessageAttributes", {}).items():
            headers[name] = attribute.get("StringValue", attribute.get("BinaryValue"))
        return ForeignMessage(
            id=f"sqs:{message['MessageId']}",
            value=message["Body"].encode(),
            headers=headers,
            receipt=message["ReceiptHandle"],
        )

    def remove(self, messages: Sequence[ForeignMessage]) -> None:
        """Delete messages; a message that SQS does not delete comes back, and is a repeat then."""
        for first in range(0, len(messages), RECEIVED_MAX):
            entries = [
                {"Id": str(index), "ReceiptHandle": message.receipt}
                for index, message in enumerate(messages[first : first + RECEIVED_MAX])
            ]
            self._call(self._client.delete_message_batch, Entries=entries)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _call(self, function: Any, **arguments: Any) -> Any:
        try:
            return function(QueueUrl=self._address, **arguments)
        except (self._errors.BotoCoreError, self._errors.ClientError) as error:
            raise InvalidInput(f"SQS: {error}") from error
