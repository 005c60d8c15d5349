"""The gateway: a request of SQS, in either protocol, from its bytes to the bytes of its answer.

SQS is spoken on the server's own port, since its clients speak HTTP: `POST /` and `POST
/ACCOUNT/QUEUE`, and the same with `GET` if the address has the parameters. Both roads of the port lead
here: the hot road, and the framework's for the requests that the hot road does not take.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import NamedTuple
from uuid import uuid4

from millstream.errors import Closed, MillstreamError
from millstream.server.core import Core
from millstream.server.gateways.sqs import protocol
from millstream.server.gateways.sqs.actions import ACTIONS
from millstream.server.gateways.sqs.call import SqsCall
from millstream.server.gateways.sqs.catalog import Catalog
from millstream.server.gateways.sqs.client import SqsClient
from millstream.server.gateways.sqs.credentials import Sender, SqsCredentials, sender_of
from millstream.server.gateways.sqs.errors import SqsError, aws_error_of
from millstream.server.gateways.sqs.names import HomePlace
from millstream.server.gateways.sqs.protocol import ParsedRequest, SqsAnswer
from millstream.server.gateways.sqs.sigv4 import SignedRequest
from millstream.server.gateways.sqs.xml import SNS_NAMESPACE, SQS_NAMESPACE, STS_NAMESPACE
from millstream.server.journal import note_failure
from millstream.server.listen.hot import SQS_PATH

HOST_BYTES_MAX = 255
TRACE_BYTES_MAX = 1_024
_ACTION = re.compile(rb"(?:^|&)Action=")
_HOST = re.compile(rf"[A-Za-z0-9.:\[\]_-]{{1,{HOST_BYTES_MAX}}}")

Headers = Sequence[tuple[bytes, bytes]]


class SqsRequest(NamedTuple):
    """A request as it was received."""

    path: bytes
    """The path with its percent signs, without the query."""
    query: bytes
    head: Mapping[bytes, bytes]
    """The first header of each name, by names in lower case."""
    headers: Headers
    """All headers; a signature may cover repeated ones."""
    body: bytes
    scheme: str = "http"
    method: str = "POST"

    def header(self, name: bytes) -> bytes:
        """Return the first header of a name; empty without."""
        return self.head.get(name, b"")


def is_sqs_path(method: str, path: bytes, query: bytes) -> bool:
    """Whether requests of a method to an address are SQS's."""
    if SQS_PATH.fullmatch(path) is None:
        return False
    return method == "POST" or (
        method == "GET" and (path != b"/" or _ACTION.search(query) is not None)
    )


class SqsGateway:
    """Answers requests of SQS; belongs to one event loop."""

    def __init__(self, core: Core) -> None:
        settings = core.settings
        self.catalog = Catalog(core, HomePlace(settings.sqs_region, settings.sqs_account))
        self.core = core
        self._credentials = SqsCredentials(core)
        self._request_ids = f"{str(uuid4())[:24]}%012x"
        """The form of request ids: as random as the process, and a number for each request."""
        self._request_numbers = count(1)

    async def answer(self, request: SqsRequest) -> SqsAnswer:
        """Return the answer to a request; never raises for what a client has sent."""
        request_id = self._request_ids % next(self._request_numbers)
        if request.method == "GET" and not _ACTION.search(request.query):
            return protocol.no_operation(request_id)
        is_json = bool(request.header(b"x-amz-target"))
        sender = sender_of(request.header(b"authorization"))
        namespace = _NAMESPACES.get(sender.service, SQS_NAMESPACE)
        try:
            _check_size(request)
            client = await self._enter(request, sender)
            try:
                parsed = _parsed(request)  # only now: strangers make no work
                action = ACTIONS.get(parsed.action)
                service = _NAMESPACES.get(sender.service)
                is_foreign = action is not None and service not in (None, action.namespace)
                if action is None or is_foreign or not _fits(request, parsed):
                    raise _unknown(parsed.action)
                _check_method(request, parsed, sender)
                namespace = action.namespace
                parameters = parsed.decode(action.shape)
                call = self._call(client, request, sender, request_id)
                result = await action.run(call, parameters)
            finally:
                self.core.admission.leave(client.principal)
        except SqsError as error:
            return _refused(error, request_id, is_json=is_json, namespace=namespace)
        except Closed:
            stopping = SqsError("ServiceUnavailable", "The server is stopping.", 503)
            return _refused(stopping, request_id, is_json=is_json, namespace=namespace)
        except MillstreamError as error:
            return _refused(aws_error_of(error), request_id, is_json=is_json, namespace=namespace)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # answered without details, and logged
            note_failure(error)
            failure = SqsError(
                "InternalFailure", "The server made a mistake; its log says where.", 500
            )
            return _refused(failure, request_id, is_json=is_json, namespace=namespace)
        if parsed.is_json:
            return protocol.json_answer(result, request_id)
        return protocol.xml_answer(parsed.action, result, request_id, namespace=namespace)

    async def _enter(self, request: SqsRequest, sender: Sender) -> SqsClient:
        """Let the sender of a request in by the door; the caller must let the client leave."""
        core = self.core
        try:
            credential = None
            if await self._credentials.must_read(sender):
                credential = await self._credentials.read(_signed(request))
            principal = await core.authentication.principal_of(credential)
            core.admission.enter(principal)
        except MillstreamError as error:
            core.admission.refuse_entry(error)
            raise
        return SqsClient(core, principal, credential or "")

    def _call(
        self, client: SqsClient, request: SqsRequest, sender: Sender, request_id: str
    ) -> SqsCall:
        home = self.catalog.home
        is_free = not self.core.authentication.needs_tokens
        return SqsCall(
            client=client,
            catalog=self.catalog,
            region=sender.region or home.region,
            account=sender.account if is_free and sender.account else home.account,
            base=base_of(request.scheme, request.header(b"host")[: HOST_BYTES_MAX + 1]),
            path=request.path.decode("latin-1"),
            request_id=request_id,
            trace=request.header(b"x-amzn-trace-id")[:TRACE_BYTES_MAX].decode("latin-1"),
        )


_OF_NO_QUEUE = frozenset({"CreateQueue", "ListQueues"})
_NAMESPACES = {"sns": SNS_NAMESPACE, "sts": STS_NAMESPACE}
"""The namespace of errors before the action is known, by the service in the signature."""


@lru_cache(maxsize=1_024)
def base_of(scheme: str, host: bytes) -> str:
    """Return the server's address as the client wrote it.

    The cache keeps the host: the caller must cut a longer host behind `HOST_BYTES_MAX`.
    """
    name = host.decode("latin-1")
    return f"{scheme}://{name if _HOST.fullmatch(name) else 'localhost'}"


def _check_size(request: SqsRequest) -> None:
    if len(request.body) > protocol.BODY_BYTES_MAX:
        raise SqsError("RequestEntityTooLarge", "The body of the request is too large.", 413)


def _parsed(request: SqsRequest) -> ParsedRequest:
    target = request.header(b"x-amz-target")
    if target:
        return protocol.parse_json(target.decode("latin-1"), request.body)
    kind = request.header(b"content-type").partition(b";")[0].strip().lower()
    body = request.body if kind == b"application/x-www-form-urlencoded" else b""
    form = b"&".join(filter(None, (request.query, body)))
    if not form:
        raise SqsError(
            "MissingAction",
            "A request of SQS names its action: by the header X-Amz-Target, or by the parameter Action "
            "of a form.",
        )
    return protocol.parse_form(form)


def _fits(request: SqsRequest, parsed: ParsedRequest) -> bool:
    """Whether the address of a form, which may be a queue's, allows the action."""
    return parsed.is_json or request.path == b"/" or parsed.action not in _OF_NO_QUEUE


def _check_method(request: SqsRequest, parsed: ParsedRequest, sender: Sender) -> None:
    """Refuse a GET that a link in any page could send, unless the action only reads.

    `Unsubscribe` is a link in every envelope; a page cannot guess the ARN of a subscription.
    """
    is_link = request.method == "GET" and not sender.is_signed
    if is_link and not parsed.action.startswith(("Get", "List", "Unsubscribe")):
        raise SqsError(
            "MissingAuthenticationToken",
            "A GET without a signature may only read: sign the request, or send a POST.",
            403,
        )


def _unknown(action: str) -> SqsError:
    return SqsError(
        "UnknownOperationException",
        f"The action {action[:100]} is not valid for this endpoint.",
    )


def _refused(error: SqsError, request_id: str, *, is_json: bool, namespace: str) -> SqsAnswer:
    if is_json:
        return protocol.json_error(error, request_id)
    return protocol.xml_error(error, request_id, namespace=namespace)


def _signed(request: SqsRequest) -> SignedRequest:
    return SignedRequest(
        request.method,
        request.path.decode("latin-1"),
        request.query.decode("latin-1"),
        [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers],
        request.body,
    )
