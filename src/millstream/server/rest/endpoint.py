"""Endpoints: what each address takes and answers, as values.

The table of endpoints builds the routes and the OpenAPI document, so that they cannot differ. An
endpoint is the coroutine that answers it: its name, docstring, parameters and return type say what
the table needs to know.

    endpoint = Endpoints("logs")

    @endpoint("POST /logs/{log}/truncate", errors=(409, 423))
    async def truncate_log(ask: Ask, log: str, body: TruncateBody) -> RemovedCount:
        '''Forget the records before an offset.'''

Parameters that the path names are handed over checked: text as a name, `int` as a number. `query`
and `body` are structs; a `body` that may be None is one of another type, to be read from `ask`.
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
    """One way in which an endpoint answers well."""

    type: Any
    """What its JSON holds; None: it has no body."""
    description: str = ""
    status: int = 200
    media_types: tuple[str, ...] = ()
    """Other forms, not described by a schema."""


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """An answer with a status of its own."""

    value: T
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one address."""

    method: str
    path: str
    name: str
    """Unique among all: the operation's id for code generators."""
    summary: str
    detail: str
    tag: str
    run: Callable[..., Awaitable[Any]]
    """Answers a value of the first answer's type, a `Reply`, or a response."""
    path_types: dict[str, Any]
    """The names in the path: text, or numbers."""
    query: Any = None
    """A struct of what may follow the question mark."""
    body: Any = None
    """A struct of what a JSON body holds."""
    body_optional: bool = False
    raw: tuple[str, ...] = ()
    """Other media types of the body, which is then taken as it is."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of a request, beside a raw body, and what each is."""
    answers: tuple[Answer, ...] = ()
    errors: tuple[int, ...] = ()
    """Statuses beyond those that every endpoint may answer."""

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


class Endpoints(list[Endpoint]):
    """The endpoints of one noun; calling it enters the coroutine that follows."""

    def __init__(self, tag: str) -> None:
        super().__init__()
        self._tag = tag

    def __call__(
        self,
        asked: str,
        *,
        status: int = 200,
        description: str = "",
        also: dict[int, str] | None = None,
        media_types: tuple[str, ...] = (),
        **about: Any,
    ) -> Callable[[Handler], Handler]:
        """Enter an endpoint; `also` are other statuses with which it answers the same."""
        method, path = asked.split()

        def enter(run: Handler) -> Handler:
            hints = get_type_hints(run, include_extras=True)
            kind = _shown(hints["return"])
            answers = [Answer(kind, description, status, media_types)]
            answers += [Answer(kind, text, other) for other, text in (also or {}).items()]
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
    """The struct of a hint: of several types, the one that is neither None nor a response."""
    if get_origin(hint) is Reply:
        return get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (one for one in get_args(hint) if one not in (NoneType, Response))
    return None if hint is Response else hint


def _camel(name: str) -> str:
    """`append_records` as `appendRecords`."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
