"""The Query protocol of SQS by raw forms, as clients before 2023 send them, and hostile forms."""

from __future__ import annotations

import http.client
import socket
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from millstream.server.gateways.sqs import gateway, road
from millstream.server.serving import Serving, running
from tests.unit.server.test_sqs import OPEN

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with running(tmp_path_factory.mktemp("sqs") / "a.db", OPEN) as serving:
        yield serving


def posted(
    server: Serving, body: bytes | dict[str, str], path: str = "/", **headers: str
) -> tuple[int, bytes]:
    """The status and the body of the answer to a form."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    data = urlencode(body).encode() if isinstance(body, dict) else body
    kind = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
    connection.request("POST", path, data, {**kind, **headers})
    answer = connection.getresponse()
    result = answer.status, answer.read()
    connection.close()
    return result


def asked(server: Serving, path: str = "/", **parameters: str) -> ElementTree.Element:
    """The answer of an action that succeeds."""
    form = {name.replace("__", "."): value for name, value in parameters.items()}
    status, body = posted(server, {**form, "Version": "2012-11-05"}, path)
    assert status == 200, body
    return ElementTree.fromstring(body)


def texts(root: ElementTree.Element, name: str) -> list[str]:
    return [element.text or "" for element in root.iter(f"{NAMESPACE}{name}")]


def test_a_message_makes_its_way_in_forms(server: Serving) -> None:
    made = asked(
        server,
        Action="CreateQueue",
        QueueName="old",
        Attribute__1__Name="VisibilityTimeout",
        Attribute__1__Value="9",
        Tag__1__Key="team",
        Tag__1__Value="a",
    )
    (url,) = texts(made, "QueueUrl")
    path = "/123456789012/old"
    assert url.endswith(path)
    sent = asked(
        server,
        path,
        Action="SendMessage",
        MessageBody="a <b> & \r\n c",
        MessageAttribute__1__Name="n",
        MessageAttribute__1__Value__DataType="Number",
        MessageAttribute__1__Value__StringValue="5",
    )
    received = asked(
        server,
        path,
        Action="ReceiveMessage",
        MaxNumberOfMessages="10",
        AttributeName__1="All",
        MessageAttributeName__1="All",
    )
    assert texts(received, "Body") == ["a <b> & \r\n c"]
    assert texts(received, "MessageId") == texts(sent, "MessageId")
    assert texts(received, "StringValue") == ["5"]
    (handle,) = texts(received, "ReceiptHandle")
    asked(server, path, Action="DeleteMessage", ReceiptHandle=handle)
    assert texts(asked(server, path, Action="ListQueueTags"), "Key") == ["team"]
    read = asked(server, path, Action="GetQueueAttributes", AttributeName__1="VisibilityTimeout")
    assert texts(read, "Value") == ["9"]
    assert url in texts(asked(server, Action="ListQueues"), "QueueUrl")


def got(server: Serving, target: str, **headers: str) -> tuple[int, str]:
    """The status and the body of the answer to a GET."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request(
        "GET", target, headers={name.replace("_", "-"): headers[name] for name in headers}
    )
    answer = connection.getresponse()
    result = answer.status, answer.read().decode()
    connection.close()
    return result


def test_a_get_has_its_parameters_in_its_address(server: Serving) -> None:
    asked(server, Action="CreateQueue", QueueName="got")
    path = "/123456789012/got"
    assert path in got(server, "/?Action=ListQueues&Version=2012-11-05")[1]
    status, text = got(server, f"{path}?Action=GetQueueAttributes&AttributeName.1=QueueArn")
    assert (status, ":got</Value>" in text) == (200, True)
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=any"}
    status, _ = got(server, f"{path}?Action=SendMessage&MessageBody=a%20%26%20b", **signed)
    assert status == 200
    assert "<Body>a &amp; b</Body>" in got(server, f"{path}?Action=ReceiveMessage", **signed)[1]
    assert "<ReceiveMessageResult/>" in got(server, f"{path}?Action=ReceiveMessage", **signed)[1]
    for action in ("CreateQueue", "ListQueues", "FooBar"):
        status, text = got(server, f"{path}?Action={action}&QueueName=x", **signed)
        assert (status, "<Code>InvalidAction</Code>" in text) == (400, True)
    assert got(server, path) == (404, "<UnknownOperationException/>")
    assert "<!doctype html>" in got(server, "/")[1]
    assert posted(server, b"", f"{path}?Action=DeleteQueue")[0] == 200


def test_no_link_in_a_page_changes_anything(server: Serving) -> None:
    asked(server, Action="CreateQueue", QueueName="linked")
    target = "/123456789012/linked?Action=DeleteQueue"
    status, text = got(server, target)
    assert (status, "MissingAuthenticationToken" in text) == (403, True)
    for headers in ({"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://elsewhere.example"}):
        assert got(server, "/123456789012/linked?Action=ListQueueTags", **headers)[0] == 403
    assert "/linked" in got(server, "/?Action=ListQueues")[1]


def test_a_null_in_json_is_a_missing_parameter(server: Serving) -> None:
    def sent(action: str, body: str) -> tuple[int, bytes]:
        headers = {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"AmazonSQS.{action}",
        }
        return posted(server, body.encode(), **headers)

    status, answer = sent("CreateQueue", '{"QueueName": "nulls", "Attributes": null, "tags": null}')
    assert (status, b"/nulls" in answer) == (200, True)
    entry = '{"Id": "1", "MessageBody": "x", "MessageAttributes": null, "DelaySeconds": null}'
    status, answer = sent("SendMessageBatch", '{"QueueUrl": "nulls", "Entries": [' + entry + "]}")
    assert (status, b'"Successful"' in answer) == (200, True)
    status, answer = sent("ReceiveMessage", '{"QueueUrl": "nulls", "AttributeNames": null}')
    assert (status, b'"Body":"x"' in answer) == (200, True)
    for wrong in ('{"QueueUrl": "nulls", "AttributeNames": 5, "x": null}', "[" * 5_000 + "null"):
        status, answer = sent("ReceiveMessage", wrong)
        assert (status, b"SerializationException" in answer) == (400, True)


def test_batches_in_forms(server: Serving) -> None:
    asked(server, Action="CreateQueue", QueueName="batched")
    path, entry = "/123456789012/batched", "SendMessageBatchRequestEntry"
    form = {"Action": "SendMessageBatch"}
    for number, body in ((2, "second"), (10, "tenth"), (1, "")):
        form |= {f"{entry}.{number}.Id": f"n{number}", f"{entry}.{number}.MessageBody": body}
    status, data = posted(server, form, path)
    root = ElementTree.fromstring(data)
    assert status == 200
    successful = root.iter(f"{NAMESPACE}SendMessageBatchResultEntry")
    assert [texts(each, "Id") for each in successful] == [["n2"], ["n10"]]
    assert texts(root, "Code") == ["MissingParameter"]


@pytest.mark.parametrize(
    ("form", "code", "status"),
    [
        (
            {"Action": "SendMessage", "QueueUrl": "http://x/123456789012/none", "MessageBody": "x"},
            "AWS.SimpleQueueService.NonExistentQueue",
            400,
        ),
        ({"Action": "Nonsense"}, "InvalidAction", 400),
        ({"Nothing": "x"}, "MissingAction", 400),
        ({"Action": "SendMessage", "MessageBody": "x"}, "MissingParameter", 400),
        ({"Action": "ListQueues", "MaxResults": "many"}, "MalformedInput", 400),
    ],
)
def test_errors_in_xml(server: Serving, form: dict[str, str], code: str, status: int) -> None:
    answered, body = posted(server, form)
    root = ElementTree.fromstring(body)
    assert (answered, texts(root, "Code"), texts(root, "Type")) == (status, [code], ["Sender"])
    assert len(texts(root, "RequestId")) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"Action=ListQueues&Action=ListQueues",
        b"Action=ListQueues&" + b"a.b.c.d.e.f.g.h.i.j=1",
        b"Action=ListQueues&a=1&a.b=2",
        b"Action=ListQueues&" + b"&".join(b"x%d=1" % n for n in range(6_000)),
        b"Action=CreateQueue&QueueName=%ff",
        b"Action=CreateQueue&QueueName=100%",
        b"Action=ListQueues&" + b"%41" * 513 + b"=1",
        b"Action=CreateQueue&QueueName=x&Attribute.1.Value=3",
        b"Action=SendMessageBatch&SendMessageBatchRequestEntry.x.Id=1&QueueUrl=/123456789012/old",
    ],
)
def test_malformed_forms_are_refused(server: Serving, body: bytes) -> None:
    status, answer = posted(server, body)
    assert status == 400, answer
    assert ElementTree.fromstring(answer).tag.endswith("ErrorResponse")


def test_a_page_of_another_origin_is_refused(server: Serving) -> None:
    form = {"Action": "CreateQueue", "QueueName": "stolen"}
    status, _ = posted(server, form, Origin="https://evil.example")
    assert status == 403
    status, _ = posted(server, form, Host="evil.example")
    assert status == 403
    assert texts(asked(server, Action="ListQueues", QueueNamePrefix="stolen"), "QueueUrl") == []


def test_a_host_beyond_its_bound_is_not_remembered(server: Serving) -> None:
    gateway.base_of.cache_clear()
    for last in "12":
        host = "127.0.0.1:" + "0" * 5_000 + last
        status, body = posted(server, {"Action": "CreateQueue", "QueueName": "long"}, Host=host)
        assert status == 200, body
        (url,) = texts(ElementTree.fromstring(body), "QueueUrl")
        assert url.startswith("http://localhost/")
    assert gateway.base_of.cache_info().currsize == 1  # both are cut to the same bytes


def test_a_value_beyond_its_bound_is_refused(server: Serving) -> None:
    status, answer = posted(server, b"Action=ListQueues&a=" + b"x" * (4 * 1024 * 1024 + 1))
    assert (status, b"4,194,304 bytes" in answer) == (400, True)


def test_a_body_that_stalls_is_answered(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(road, "BODY_S", 0.05)
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nA"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head)
        answer = b"".join(iter(lambda: connection.recv(4_096), b"")).lower()
    assert answer.startswith(b"http/1.1 408 ")
    assert b"connection: close" in answer
