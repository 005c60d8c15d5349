"""Google Cloud Storage as tests have it: its way to say conditions, before moto's S3.

Google's XML interface is that of S3 but for this: each state of an object has a number, its
generation, and a request names the one that it expects.

    x-goog-if-generation-match: 0    the object is not there yet
    x-goog-if-generation-match: N    the object is still in this state
    x-goog-generation: N             in answers: the state that was put, or read

This is written after Google's documentation, and nothing of Google's was asked: a test against it
shows that our side speaks that way, and not what Google answers.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler

from millstream.bench.objects import ObjectAnswer
from tests.kit.objects import ObjectProxy

CONDITION, GENERATION = "x-goog-if-generation-match", "x-goog-generation"

AMAZON = "AWS4-HMAC-SHA256 Credential=trial/20260101/us-east-1/s3/aws4_request, Signature=0"
"""What moto wants to see of a caller, and does not check."""


class GoogleFront(ObjectProxy):
    """Moto's S3, asked as Google's is."""

    def __init__(self, behind: str, *, honours_conditions: bool = True) -> None:
        super().__init__(behind)
        self.conditions = 0
        """How many requests named the state that they expect."""
        self.replaces = {"authorization": AMAZON}
        self._honours = honours_conditions
        self._turn = threading.Lock()
        self._generations: dict[str, int] = {}
        self._last = 1_700_000_000_000_000

    def forward(self, request: BaseHTTPRequestHandler, body: bytes) -> ObjectAnswer:
        name, _, query = request.path.partition("?")
        with self._turn:  # a condition and what it guards are one step
            expected = request.headers.get(CONDITION)
            if expected is not None:
                self.conditions += 1
                if self._honours and int(expected) != self._generations.get(name, 0):
                    return 412, [], b"<Error><Code>PreconditionFailed</Code></Error>"
            status, headers, answer = super().forward(request, body)
            if status < 300:
                self._note(request.command, name, query)
            headers.append((GENERATION, str(self._generations.get(name, 0))))
            return status, headers, answer

    def _note(self, command: str, name: str, query: str) -> None:
        is_whole = command == "PUT" and "partNumber" not in query
        if is_whole or (command == "POST" and "uploadId" in query):
            self._last += 1
            self._generations[name] = self._last
        elif command == "DELETE" and not query:
            self._generations.pop(name, None)
