"""Signature V4, against the signer of botocore: what it signs is accepted, and any change refused."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import pytest

from millstream.server.gateways.sqs.sigv4 import (
    SKEW_MS,
    STATUSES,
    RequestSignature,
    SignatureRefused,
    SignedRequest,
    digest_of,
    parse_signature,
    verify,
)

auth = pytest.importorskip("botocore.auth")
awsrequest = pytest.importorskip("botocore.awsrequest")
credentials = pytest.importorskip("botocore.credentials")

KEY, SECRET = "0123456789abcdef", "s3cret/+=with signs"
URL = "http://localhost:7777"
BODY = b'{"QueueName":"mail"}'
TARGET = {"X-Amz-Target": "AmazonSQS.CreateQueue", "Content-Type": "application/x-amz-json-1.0"}


def signed(
    method: str = "POST",
    url: str = URL + "/",
    body: bytes = BODY,
    headers: dict[str, str] | None = None,
    *,
    secret: str = SECRET,
    token: str | None = None,
    service: str = "sqs",
) -> SignedRequest:
    """Return a request as botocore signs it now."""
    request = awsrequest.AWSRequest(method, url, data=body, headers=headers or TARGET)
    signer = auth.SigV4Auth(credentials.Credentials(KEY, secret, token), service, "eu-west-1")
    signer.add_auth(request)
    parts = urlsplit(url)
    pairs = [(name.lower(), value) for name, value in request.headers.items()]
    return SignedRequest(method, parts.path, parts.query, [("host", parts.netloc), *pairs], body)


def time_of(request: SignedRequest) -> int:
    """Return the time at which a request was signed, in milliseconds."""
    day = dict(request.headers)["x-amz-date"]
    parsed = datetime.strptime(day, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return int(parsed.timestamp() * 1000)


def check(request: SignedRequest, *, later_ms: int = 0, services: str = "sqs") -> RequestSignature:
    """Verify a request with the secret of the only key, as the server would at a later time."""
    now_ms = (time_of(request) if "x-amz-date" in dict(request.headers) else 0) + later_ms
    return verify(request, {KEY: SECRET}.get, now_ms=now_ms, services=[services])


def refusal(request: SignedRequest, *, later_ms: int = 0, services: str = "sqs") -> str:
    """Return the code with which a request is refused."""
    with pytest.raises(SignatureRefused) as caught:
        check(request, later_ms=later_ms, services=services)
    assert caught.value.code in STATUSES
    return str(caught.value.code)


def with_header(request: SignedRequest, name: str, value: str | None) -> SignedRequest:
    """Return a copy with another value of one header, or without the header."""
    kept = [pair for pair in request.headers if pair[0] != name]
    return replace(request, headers=kept if value is None else [*kept, (name, value)])


@pytest.mark.parametrize(
    "url",
    [
        URL + "/",
        URL,
        URL + "/123456789012/mail.fifo",
        URL + "/a%20b/%C3%A9~x/",
        URL + "/a//b/./c/../d",
        URL + "/?Action=ListQueues&QueueNamePrefix=a%2Fb%20c&Empty=",
        URL + "/?b=2&a=2&a=1&a-b=0&%E2%82%AC=x",
    ],
)
def test_what_botocore_signs_is_accepted(url: str) -> None:
    for method, body in (("POST", BODY), ("GET", b""), ("POST", bytes(range(256)))):
        signature = check(signed(method, url, body))
        assert (signature.access_key_id, signature.region) == (KEY, "eu-west-1")


def test_headers_count_with_single_spaces_and_a_session_token_is_signed() -> None:
    headers = {"X-Amz-Target": "  AmazonSQS.SendMessage ", "X-Amz-Note": "a  b   c", "Accept": "é"}
    assert check(signed(headers=headers, token="session"))
    request = signed(token="session")
    assert refusal(with_header(request, "x-amz-security-token", "other")) == "SignatureDoesNotMatch"


def test_a_date_header_stands_in_for_the_one_of_amazon() -> None:
    request = signed(
        headers={**TARGET, "Date": "any"}
    )  # botocore then sets this header to the time
    date = dict(request.headers)["date"]
    assert "x-amz-date" not in dict(request.headers)
    now_ms = int(parsedate_to_datetime(date).timestamp() * 1000)
    assert verify(request, {KEY: SECRET}.get, now_ms=now_ms, services=["sqs"])
    assert refusal(with_header(request, "date", "yesterday")) == "IncompleteSignature"
    assert refusal(with_header(request, "date", None)) == "SignatureDoesNotMatch"


def test_any_change_of_what_is_signed_is_refused() -> None:
    request = signed(url=URL + "/q?a=1")
    changed = [
        replace(request, body=BODY + b" "),
        replace(request, body=b""),
        replace(request, method="GET"),
        replace(request, path="/other"),
        replace(request, query="a=2"),
        replace(request, query="a=1&a=2"),
        with_header(request, "x-amz-target", "AmazonSQS.DeleteQueue"),
        with_header(request, "host", "elsewhere:7777"),
    ]
    assert {refusal(each) for each in changed} == {"SignatureDoesNotMatch"}
    assert check(request)


def test_another_secret_and_an_unknown_key_are_told_apart() -> None:
    assert refusal(signed(secret=SECRET + "x")) == "SignatureDoesNotMatch"
    request = signed()
    with pytest.raises(SignatureRefused) as caught:
        verify(request, {}.get, now_ms=time_of(request), services=["sqs"])
    assert caught.value.code == "InvalidClientTokenId"


def test_a_signature_is_good_for_fifteen_minutes_in_both_directions() -> None:
    request = signed()
    assert check(request, later_ms=SKEW_MS) == check(request, later_ms=-SKEW_MS)
    assert refusal(request, later_ms=SKEW_MS + 1) == "RequestExpired"
    assert refusal(request, later_ms=-SKEW_MS - 1) == "RequestExpired"
    assert refusal(signed(secret="x"), later_ms=SKEW_MS + 1) == "SignatureDoesNotMatch"


def test_a_newer_date_over_an_old_signature_is_refused() -> None:
    request = signed()
    day = dict(request.headers)["x-amz-date"][:8]
    moved = with_header(request, "x-amz-date", f"{day}T000001Z")
    assert refusal(moved) == "SignatureDoesNotMatch"
    assert (
        refusal(with_header(request, "x-amz-date", "20300101T000000Z")) == "SignatureDoesNotMatch"
    )
    assert refusal(with_header(request, "authorization", None)) == "MissingAuthenticationToken"


def test_a_signature_for_another_service_is_refused() -> None:
    assert refusal(signed(service="s3")) == "SignatureDoesNotMatch"
    assert check(signed(service="sns"), services="sns").service == "sns"


def test_headers_that_change_the_meaning_must_be_signed_once() -> None:
    request = signed(headers={"Content-Type": "application/x-amz-json-1.0"})
    added = with_header(request, "x-amz-target", "AmazonSQS.PurgeQueue")
    assert refusal(added) == "SignatureDoesNotMatch"
    doubled = replace(request, headers=[*request.headers, ("x-amz-date", "20300101T000000Z")])
    with pytest.raises(SignatureRefused, match="several headers"):
        parse_signature(doubled.headers)
    twice = replace(signed(), headers=[*signed().headers, ("host", "other")])
    assert refusal(twice) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    "text",
    [
        "Bearer ms_abc",
        "AWS4-HMAC-SHA256",
        "AWS4-HMAC-SHA256 Credential=a/20260101/r/sqs/aws4_request",
        "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=host, Signature=" + "0" * 64,
        "AWS4-HMAC-SHA256 Credential=/20260101/r/sqs/aws4_request, SignedHeaders=host, Signature="
        + "0" * 64,
        "AWS4-HMAC-SHA256 Credential=a/20260101/r/sqs/aws4_request, SignedHeaders=host, Signature=00",
        "AWS4-HMAC-SHA256 Credential=a/20260101/r/sqs/aws4_request, SignedHeaders=x;host, Signature="
        + "0" * 64,
        "AWS4-HMAC-SHA256 Credential=a/20260101/R\n/sqs/aws4_request, SignedHeaders=host, Signature="
        + "0" * 64,
        "AWS4-HMAC-SHA256 " + "x" * 5000,
    ],
)
def test_a_header_without_all_parts_is_incomplete(text: str) -> None:
    assert refusal(with_header(signed(), "authorization", text)) == "IncompleteSignature"


def test_a_date_that_no_calendar_has_is_incomplete() -> None:
    request = with_header(signed(), "x-amz-date", "20261341T999999Z")
    claims = replace(parse_signature(signed().headers), day="20261341", time="20261341T999999Z")
    text = (
        f"AWS4-HMAC-SHA256 Credential={KEY}/{claims.scope}, SignedHeaders="
        f"{';'.join(claims.signed_headers)}, Signature={digest_of(request, claims, SECRET)}"
    )
    with pytest.raises(SignatureRefused, match="not a time of the calendar"):
        check_at_zero(with_header(request, "authorization", text))
    with pytest.raises(SignatureRefused, match="must have the form"):
        parse_signature(with_header(request, "x-amz-date", "now").headers)


def check_at_zero(request: SignedRequest) -> None:
    """Verify a request whose date has no place on a calendar."""
    verify(request, {KEY: SECRET}.get, now_ms=0, services=["sqs"])
