"""Signature V4 of AWS: whether the holder of a secret has signed exactly this request. Pure.

The signature stands in the header `Authorization`. It covers the method, the path, the query, the
signed headers and the body, and it names the access key, the day, the region and the service. A
request without a signed `Host` or with an unsigned `X-Amz-…` header is refused, because a changed
`X-Amz-Target` would be another action.

The canonical request is computed from the received request alone: nothing that the client says about
its own body (`X-Amz-Content-Sha256`) counts. `verify` raises `SignatureRefused`, whose `code` is
AWS's code of the error.
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from urllib.parse import quote, unquote_to_bytes

from millstream.errors import Unauthenticated

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_MS = 15 * 60 * 1000
"""How far the time of a signature may lie from the server's time, in both directions."""

AUTHORIZATION_CHARS_MAX = 4_096
"""The longest header `Authorization`; a longer header is refused unread."""

STATUSES = {
    "IncompleteSignature": 400,
    "InvalidClientTokenId": 403,
    "MissingAuthenticationToken": 403,
    "RequestExpired": 400,
    "SignatureDoesNotMatch": 403,
}
"""The HTTP status of each code of a refusal."""

_PARTS = ("Credential", "SignedHeaders", "Signature")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_REGION = re.compile(r"[a-z0-9-]{1,64}")
_UNRESERVED = "-_.~"
_MISMATCH = (
    "The request signature we calculated does not match the signature you provided. "
    "Check your AWS Secret Access Key and signing method."
)


class SignatureRefused(Unauthenticated):
    """A request without a valid signature. Data: `code`, AWS's code of the error."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request as it was received: path and query still have their percent signs."""

    method: str
    path: str
    query: str
    headers: Sequence[tuple[str, str]]
    """Names in lower case with their values, in the order of arrival."""
    body: bytes


@dataclass(frozen=True, slots=True)
class RequestSignature:
    """The claims of a signature, before the check against the secret."""

    access_key_id: str
    day: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    digest: str
    time: str
    """The time of signing, as `20260131T235959Z`."""

    @property
    def scope(self) -> str:
        """The day, region and service for which the signing key is good."""
        return f"{self.day}/{self.region}/{self.service}/aws4_request"


def verify(
    request: SignedRequest,
    secret_of: Callable[[str], str | None],
    *,
    now_ms: int,
    services: Collection[str],
) -> RequestSignature:
    """Return the signature of a request whose signer knows the secret of its access key.

    `secret_of` returns the secret of an access key id, or None for an unknown id. `services` holds
    the names of the services that the request may be meant for.
    """
    signature = parse_signature(request.headers)
    if signature.service not in services:
        names = " or ".join(f"'{name}'" for name in sorted(services))
        raise _refused(
            "SignatureDoesNotMatch",
            f"Credential should be scoped to correct service: {names}, not '{signature.service}'.",
        )
    secret = secret_of(signature.access_key_id)
    if secret is None:
        raise _refused(
            "InvalidClientTokenId", "The security token included in the request is invalid."
        )
    expected = digest_of(request, signature, secret)
    if not hmac.compare_digest(expected, signature.digest):
        raise _refused("SignatureDoesNotMatch", _MISMATCH)
    _check_time(signature.time, now_ms)
    return signature


def parse_signature(headers: Sequence[tuple[str, str]]) -> RequestSignature:
    """Read the claims of the header `Authorization`; nothing is verified yet."""
    text = _only(headers, "authorization")
    if not text:
        raise _refused(
            "MissingAuthenticationToken", "The request is missing an authentication token."
        )
    if len(text) > AUTHORIZATION_CHARS_MAX:
        raise _incomplete(
            f"The Authorization header has more than {AUTHORIZATION_CHARS_MAX} characters."
        )
    algorithm, _, claims = text.partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete(f"The Authorization header must begin with '{ALGORITHM}'.")
    credential, names, digest = _parts(claims)
    scope = credential.rsplit("/", 4)
    if (
        len(scope) != 5
        or scope[4] != "aws4_request"
        or not _REGION.fullmatch(scope[2])
        or not scope[0]
    ):
        raise _incomplete(
            "Credential must have the form 'KEY/YYYYMMDD/REGION/SERVICE/aws4_request'."
        )
    if not _SIGNATURE.fullmatch(digest):
        raise _incomplete("Signature must have 64 hexadecimal digits in lower case.")
    signed = tuple(names.split(";"))
    _check_signed(headers, signed)
    time = _time_of(headers)
    if not time.startswith(scope[1] + "T"):
        raise _refused(
            "SignatureDoesNotMatch",
            f"Date in Credential scope does not match the date of the request: {scope[1]} and {time}.",
        )
    key, day, region, service, _ = scope
    return RequestSignature(key, day, region, service, signed, digest, time)


def digest_of(request: SignedRequest, signature: RequestSignature, secret: str) -> str:
    """Compute the signature that the holder of a secret gives to a request."""
    text = "\n".join(
        (
            ALGORITHM,
            signature.time,
            signature.scope,
            sha256(_canonical_request(request, signature.signed_headers)).hexdigest(),
        )
    )
    key = f"AWS4{secret}".encode()
    for field in (signature.day, signature.region, signature.service, "aws4_request"):
        key = hmac.digest(key, field.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def _canonical_request(request: SignedRequest, signed: Sequence[str]) -> bytes:
    values: dict[str, list[str]] = {name: [] for name in signed}
    for name, value in request.headers:
        if name in values:
            values[name].append(" ".join(value.split()))
    headers = "".join(f"{name}:{','.join(values[name])}\n" for name in signed)
    lines = (
        request.method,
        quote(_normal_path(request.path), safe="/~"),
        _canonical_query(request.query),
        headers,
        ";".join(signed),
        sha256(request.body).hexdigest(),
    )
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _normal_path(path: str) -> str:
    """Remove empty and dot segments, as RFC 3986 says."""
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    is_folder = path.endswith(("/", "/.", "/..")) and bool(segments)
    return "/" + "/".join(segments) + ("/" if is_folder else "")


def _canonical_query(query: str) -> str:
    spaced = query.replace("+", " ")  # signed as %20, also where a client sends a plus sign
    pairs = [pair.partition("=") for pair in spaced.split("&") if pair]
    encoded = [
        (
            quote(unquote_to_bytes(name), safe=_UNRESERVED),
            quote(unquote_to_bytes(value), safe=_UNRESERVED),
        )
        for name, _, value in pairs
    ]
    return "&".join(f"{name}={value}" for name, value in sorted(encoded))


def _parts(text: str) -> tuple[str, str, str]:
    """Return Credential, SignedHeaders and Signature of an authorization, each exactly once."""
    values: dict[str, str] = {}
    for field in text.split(","):
        name, _, value = field.strip().partition("=")
        if name not in _PARTS or name in values:
            raise _incomplete("The Authorization header has an unknown or repeated parameter.")
        values[name] = value
    missing = [name for name in _PARTS if not values.get(name)]
    if missing:
        raise _incomplete(
            " ".join(f"Authorization header requires '{name}' parameter." for name in missing)
        )
    return values["Credential"], values["SignedHeaders"], values["Signature"]


def _check_signed(headers: Sequence[tuple[str, str]], signed: tuple[str, ...]) -> None:
    """Refuse signatures that do not cover the headers on which the meaning of a request depends."""
    if list(signed) != sorted(set(signed)) or not all(signed):
        raise _incomplete("SignedHeaders must be distinct names in alphabetical order.")
    present = {name for name, _ in headers}
    needed = {name for name in present if name.startswith("x-amz-")} | {"host"}
    if unsigned := sorted(needed.difference(signed)):
        raise _refused(
            "SignatureDoesNotMatch",
            f"There were headers present in the request which were not signed: {', '.join(unsigned)}.",
        )
    if missing := sorted(set(signed) - present):
        raise _refused(
            "SignatureDoesNotMatch", f"The request lacks signed headers: {', '.join(missing)}."
        )


def _time_of(headers: Sequence[tuple[str, str]]) -> str:
    """Return the time of signing in its basic form: of `X-Amz-Date`, else of `Date`."""
    if time := _only(headers, "x-amz-date"):
        if not _TIME.fullmatch(time):
            raise _incomplete("X-Amz-Date must have the form 'YYYYMMDDTHHMMSSZ'.")
        return time
    date = _only(headers, "date")
    if not date:
        raise _incomplete(
            "Authorization header requires existence of an 'X-Amz-Date' or a 'Date' header."
        )
    if _TIME.fullmatch(date):
        return date
    try:
        return parsedate_to_datetime(date).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    except (ValueError, OverflowError):
        raise _incomplete("Date must have the form of RFC 1123, or 'YYYYMMDDTHHMMSSZ'.") from None


def _check_time(time: str, now_ms: int) -> None:
    try:
        signed_ms = int(
            datetime.strptime(time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1000
        )
    except ValueError:
        raise _incomplete(f"'{time}' is not a time of the calendar.") from None
    if signed_ms < now_ms - SKEW_MS:
        raise _refused(
            "RequestExpired",
            f"Signature expired: the request was signed at {time}, over 15 minutes ago.",
        )
    if signed_ms > now_ms + SKEW_MS:
        raise _refused(
            "RequestExpired",
            f"Signature not yet current: it was signed at {time}, over 15 minutes ahead of the server.",
        )


def _only(headers: Sequence[tuple[str, str]], name: str) -> str | None:
    """Return the value of a header that may stand in a request once."""
    values = [value for each, value in headers if each == name]
    if len(values) > 1:
        raise _incomplete(f"The request has several headers '{name}'.")
    return values[0].strip() if values else None


def _incomplete(message: str) -> SignatureRefused:
    return _refused("IncompleteSignature", message)


def _refused(code: str, message: str) -> SignatureRefused:
    return SignatureRefused(message, code=code)
