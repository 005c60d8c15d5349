"""Endpoints: the parameters and answers of each address, as values.

The table of endpoints builds the routes and also the OpenAPI document, so that the two agree.
An endpoint is a coroutine. Its name, docstring, parameters and return type fill the table.

    endpoint = Endpoints("logs")

    @endpoint("POST /logs/{log}/truncate", errors=(409, 423))
    async def truncate_log(ask: Ask, log: str, body: TruncateBody) -> RemovedCount:
        '''Forget the records before an offset.'''

Path parameters arrive checked: text as a name, `int` as a number. `query` and `body` are structs. A
`body` that may be None has another media type, and the handler reads it from `ask`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from starlette.responses import Response

JSON = "application/json"
ANY = "*/*"
ARROW = "application/vnd.apache.arrow.stream"
BATCH = "application/x-millstream-batch"

T = TypeVar("T")
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])


@dataclass(frozen=True, slots=True)
class Answer:
    """A successful answer of an endpoint."""

    type: Any
    """The type of the JSON body; None: the answer has no body."""
    description: str = ""
    status: int = 200
    media_types: tuple[str, ...] = ()
    """Further media types, which have no schema."""


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """An answer with its own status."""

    value: T
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A method of a path."""

    method: str
    path: str
    name: str
    """A unique name: the operation id for code generators."""
    summary: str
    detail: str
    tag: str
    run: Callable[..., Awaitable[Any]]
    """The coroutine; it returns a value of the first answer's type, a `Reply`, or a response."""
    path_types: dict[str, Any]
    """The type of each path parameter: text or number."""
    query: Any = None
    """A struct with the query parameters."""
    body: Any = None
    """A struct with the fields of a JSON body."""
    body_optional: bool = False
    raw: tuple[str, ...] = ()
    """Further media types of the body, which the handler gets as bytes."""
    headers: dict[str, str] = field(default_factory=dict)
    """Request headers beside a raw body, and their descriptions."""
    answers: tuple[Answer, ...] = ()
    errors: tuple[int, ...] = ()
    """Error statuses, besides those of every endpoint."""

    @property
    def takes_body(self) -> bool:
        """Whether the endpoint reads a body."""
        return self.body is not None or bool(self.raw)

    def statuses(self) -> list[int]:
        """Return all error statuses of the endpoint."""
        statuses = {401, 403, 429, 500, 503, *self.errors}
        if "{" in self.path or self.query is not None or self.takes_body:
            statuses.add(422)
        if self.takes_body:
            statuses |= {400, 408, 413, 415}
        return sorted(statuses)


class Endpoints(list[Endpoint]):
    """The endpoints of one noun; a call registers the coroutine that follows."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self._tag = tag

    def __call__(
        self,
        route: str,
        *,
        status: int = 200,
        description: str = "",
        also: dict[int, str] | None = None,
        media_types: tuple[str, ...] = (),
        **about: Any,
    ) -> Callable[[Handler], Handler]:
        """Register an endpoint; `also` lists further statuses with the same answer."""
        method, path = route.split()

        def enter(run: Handler) -> Handler:
            hints = get_type_hints(run, include_extras=True)
            kind = _shown(hints["return"])
            answers = [Answer(kind, description, status, media_types)]
            answers += [Answer(kind, text, code) for code, text in (also or {}).items()]
            summary, _, detail = (inspect.getdoc(run) or "").partition("\n\n")
            self.append(
                Endpoint(
                    method=method,
                    path=path,
                    name=_camel(run.__name__),
                    summary=" ".join(summary.split()).removesuffix("."),
                    detail=" ".join(detail.split()),
                    tag=self._tag,
                    run=run,
                    path_types={name: hints[name] for name in re.findall(r"\{(\w+)\}", path)},
                    query=hints.get("query"),
                    body=_shown(hints.get("body")),
                    answers=tuple(answers),
                    **about,
                )
            )
            return run

        return enter


def _shown(hint: Any) -> Any:
    """Return the struct of a type hint: the member that is neither None nor a response."""
    if get_origin(hint) is Reply:
        return get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (member for member in get_args(hint) if member not in (NoneType, Response))
    return None if hint is Response else hint


def _camel(name: str) -> str:
    """Return `append_records` as `appendRecords`."""
    first, *words = name.split("_")
    return first + "".join(word.capitalize() for word in words)
