"""Endpoints: what each address takes and answers, as values.

The table of endpoints builds the routes and the OpenAPI document, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.server.rest.ask import Ask

JSON = "application/json"
ANY = "*/*"
ARROW = "application/vnd.apache.arrow.stream"
BATCH = "application/x-millstream-batch"


@dataclass(frozen=True, slots=True)
class Answer:
    """One way in which an endpoint answers well."""

    type: Any
    """What its JSON holds; None: it has no body."""
    description: str = ""
    status: int = 200
    media_types: tuple[str, ...] = ()
    """Other forms, not described by a schema."""


@dataclass(frozen=True, slots=True)
class Header:
    """A header of a request, beside a raw body."""

    name: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one address."""

    method: str
    path: str
    name: str
    """Unique among all: the operation's id for code generators."""
    summary: str
    run: Callable[[Ask], Awaitable[Any]] | None
    """Answers a value of the first answer's type, a `Reply`, or a response; None: a route of its
    own answers, and only the document needs the endpoint."""
    tag: str
    query: Any = None
    """A struct of what may follow the question mark."""
    body: Any = None
    """A struct of what a JSON body holds."""
    body_optional: bool = False
    raw: tuple[str, ...] = ()
    """Other media types of the body, which is then taken as it is."""
    headers: tuple[Header, ...] = ()
    answers: tuple[Answer, ...] = ()
    errors: tuple[int, ...] = ()
    """Statuses beyond those that every endpoint may answer."""
    detail: str = ""

    @property
    def takes_body(self) -> bool:
        """Whether a body is read at all."""
        return self.body is not None or bool(self.raw)

    def statuses(self) -> list[int]:
        """Every status by which it may refuse."""
        found = {401, 403, 429, 500, 503, *self.errors}
        if "{" in self.path or self.query is not None or self.takes_body:
            found.add(422)
        if self.takes_body:
            found |= {400, 408, 413, 415}
        return sorted(found)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with a status of its own."""

    value: Any
    status: int
