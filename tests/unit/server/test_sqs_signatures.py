"""Signatures of SQS where tokens are needed: the id of a token is the key, its text the secret."""

from __future__ import annotations

from pathlib import Path
from shutil import copy
from typing import Any

import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

import millstream
from millstream.server.auth.signing_key import KEY_FILE
from millstream.server.auth.tokens import create_token
from millstream.server.serving import running
from millstream.server.settings import Settings
from tests.unit.server.test_sns import client_of
from tests.unit.server.test_sqs import sqs_of
from tests.unit.server.test_sqs_query import posted

GUARDED = Settings(port=0, stop_s=5.0, auth="on")


def code_of(call: Any, **parameters: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    return str(caught.value.response["Error"]["Code"])


def test_only_the_holder_of_a_token_may_sign(tmp_path: Path) -> None:
    store = tmp_path / "a.db"
    with millstream.open(store) as ms:
        made, text = create_token(ms, "worker", ["queue:admin:mail"])
        _, other = create_token(ms, "reader", ["queue:read:mail"])
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert text.encode() not in store.read_bytes()
    with running(store, GUARDED) as server:
        sqs = sqs_of(server, key=made.id, secret=text)
        url = sqs.create_queue(QueueName="mail")["QueueUrl"]
        sent = sqs.send_message(QueueUrl=url, MessageBody="signed")
        (message,) = sqs.receive_message(QueueUrl=url, AttributeNames=["SenderId"])["Messages"]
        assert message["MessageId"] == sent["MessageId"]
        assert message["Attributes"]["SenderId"] == made.id

        assert code_of(sqs.create_queue, QueueName="foreign") == "AccessDenied"
        forged = sqs_of(server, key=made.id, secret=other)
        assert code_of(forged.list_queues) == "SignatureDoesNotMatch"
        unknown = sqs_of(server, key="nobody", secret=text)
        assert code_of(unknown.list_queues) == "InvalidClientTokenId"


def test_the_parameters_of_an_address_are_signed(tmp_path: Path) -> None:
    store = tmp_path / "a.db"
    with millstream.open(store) as ms:
        made, text = create_token(ms, "worker", ["queue:admin:mail"])
    with running(store, GUARDED) as server:
        url = sqs_of(server, key=made.id, secret=text).create_queue(QueueName="mail")["QueueUrl"]
        parameters = {"Action": "SendMessage", "MessageBody": "é & ü"}
        for method in ("GET", "POST"):
            request = AWSRequest(method, url, params=parameters)
            SigV4Auth(Credentials(made.id, text), "sqs", "us-east-1").add_auth(request)
            sent = request.prepare()
            assert httpx.request(method, sent.url, headers=sent.headers).status_code == 200
            forged = f"{sent.url}&DelaySeconds=9"
            answer = httpx.request(method, forged, headers=sent.headers)
            assert (answer.status_code, "SignatureDoesNotMatch" in answer.text) == (403, True)
        assert httpx.get(url, params={"Action": "ListQueueTags"}).status_code == 403


def test_a_copy_of_the_store_verifies_nothing(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        made, text = create_token(ms, "worker", ["admin"])
    (tmp_path / KEY_FILE).unlink()
    with running(tmp_path / "a.db", GUARDED) as server:
        sqs = sqs_of(server, key=made.id, secret=text)
        assert code_of(sqs.list_queues) == "InvalidClientTokenId"


def test_a_copy_of_the_store_with_its_key_verifies_what_the_store_did(tmp_path: Path) -> None:
    store, place = tmp_path / "a.db", tmp_path / "copies"
    with millstream.open(store) as ms:
        made, text = create_token(ms, "worker", ["admin"])
    place.mkdir()
    copy(store, place / "restored.db")
    copy(tmp_path / KEY_FILE, place)
    with millstream.open(place / "restored.db") as ms:
        later, later_text = create_token(ms, "later", ["admin"])
    with running(place / "restored.db", GUARDED) as server:
        for token, secret in ((made, text), (later, later_text)):
            assert sqs_of(server, key=token.id, secret=secret).list_queues()


def test_rights_come_before_everything_else(tmp_path: Path) -> None:
    store = tmp_path / "a.db"
    with millstream.open(store) as ms:
        chief, chief_text = create_token(ms, "chief", ["admin"])
        guest, guest_text = create_token(ms, "guest", ["queue:read:mail"])
    with running(store, GUARDED) as server:
        sqs = sqs_of(server, key=chief.id, secret=chief_text)
        url = sqs.create_queue(QueueName="mail")["QueueUrl"]
        denied = sqs_of(server, key=guest.id, secret=guest_text)
        assert code_of(denied.purge_queue, QueueUrl=url) == "AccessDenied"
        sqs.purge_queue(QueueUrl=url)  # a refused purge begins no pause

        sns = client_of(server, "sns", chief.id, chief_text)
        topic = sns.create_topic(Name="plans")["TopicArn"]
        endpoint = "arn:aws:sqs:us-east-1:123456789012:mail"
        member = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=endpoint)
        stranger = client_of(server, "sns", guest.id, guest_text)
        of_topic, of_member = {"TopicArn": topic}, member["SubscriptionArn"]
        assert code_of(stranger.get_topic_attributes, **of_topic) == "AccessDenied"
        assert code_of(stranger.list_subscriptions_by_topic, **of_topic) == "AccessDenied"
        assert code_of(stranger.list_tags_for_resource, ResourceArn=topic) == "AccessDenied"
        read = stranger.get_subscription_attributes
        assert code_of(read, SubscriptionArn=of_member) == "AccessDenied"
        assert sns.get_topic_attributes(**of_topic)["Attributes"]["SubscriptionsConfirmed"] == "1"

        status, answer = posted(server, b"&" * 9_999)
        assert (status, b"InvalidClientTokenId" in answer) == (403, True)
