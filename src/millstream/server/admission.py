"""Admission: the one door through which every request and every command of a client comes in.

Every protocol uses this module: REST through the framework, REST's hot endpoints, the streaming
socket with and without tasks, rooms and gateways; on a single server and on a node of a cluster. No
function waits, so a caller needs no task. The security order has only this text.

A request or a connection enters:

1. *authenticate*: the protocol reads a credential, `auth/` finds the principal (`Unauthenticated`);
2. *rate*: the token pays for the request (`Overloaded`);
3. *connections*: the token has one more request or connection open (`Overloaded`).

The protocol then reads and decodes the body, and a node of a cluster that may not answer relays the
command or refuses it (`NotLeader`). A command is admitted:

4. *confirm*: the token still counts, with the rights that it has now (`Unauthenticated`);
5. *rights*: the principal may ask for this (`Denied`);
6. *bounds*: names, numbers and lengths (`InvalidInput`, `TooLarge`); then the command is signed with
   the user of a ticket, its wait and its answer are cut to size, and its records get the trace;
7. *requests*: the token has one more command running, unless the command waits (`Overloaded`);
8. *claims*: the client has free space for the messages that it claims (`Overloaded`).

The command runs. A command that has waited passes 4 and 5 again, because rights may have been
narrowed meanwhile. `Call.settle` then gives back 7 and 8, counts and measures the command, and ends
its spans. Rights stand before bounds, so that a client learns nothing about names that it may not
use; quotas stand last, so that a refused command uses up no quota.

Commands of another node of the cluster are not admitted again: the node shows the cluster's key, and
has admitted its client itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from millstream.command import Command, waits
from millstream.errors import Unauthenticated
from millstream.queue.commands import ClaimMessages
from millstream.server.auth.access import Principal
from millstream.server.auth.need import Need
from millstream.server.auth.query_turns import Turns
from millstream.server.auth.quota import Quota
from millstream.server.auth.tokens import Tokens
from millstream.server.bounds import bounded, check_command
from millstream.server.claim_counts import ClaimCounts
from millstream.server.observe.meter import Meter
from millstream.server.observe.slow import SlowCommands
from millstream.server.observe.tracing import Tracer, traced
from millstream.server.settings import Settings
from millstream.store.store import Store

T = TypeVar("T")

HOLDERS_MAX = 1_000
"""Tokens whose claims are counted; beyond this number tokens without claims are forgotten."""


class Admission:
    """Admits the requests and commands of all clients; belongs to one event loop."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        *,
        tokens: Tokens,
        quota: Quota,
        meter: Meter,
        slow: SlowCommands,
    ) -> None:
        self.tokens = tokens
        self.quota = quota
        self.meter = meter
        self.slow = slow
        self.tracer = Tracer()
        self.seconds = store.clock.seconds
        """The clock by which commands are measured."""
        self._limits = store.limits
        self._settings = settings
        self._state = store.state
        self._holdings: dict[str, ClaimCounts] = {}
        """The claims of each token's requests; a connection may count its claims itself."""
        self._holder_names: dict[str, str] = {}
        """The name of each of these tokens."""

    # A request or a connection enters.

    def enter(self, principal: Principal) -> None:
        """Let a request or a connection of a principal in; `leave` must follow."""
        self.quota.spend(principal)
        self.quota.connections.take(principal)

    def leave(self, principal: Principal) -> None:
        """End a request or a connection that has entered."""
        self.quota.connections.give(principal)

    @contextmanager
    def entered(self, principal: Principal) -> Iterator[None]:
        """Let a principal in while the block runs."""
        self.enter(principal)
        try:
            yield
        finally:
            self.leave(principal)

    def pay(self, principal: Principal, requests: int = 1) -> None:
        """Pay for requests on a connection that has entered."""
        self.quota.spend(principal, requests)

    def refuse_entry(self, error: Exception) -> None:
        """Count a request or a connection that was refused before it was read."""
        self.meter.denied.labels(type(error).__name__).inc()

    # A command is admitted.

    def is_ready(self, principal: Principal) -> bool:
        """Whether `admit` may be called now; if not, wait for `tokens.freshen_for` before."""
        return not principal.token or self.tokens.is_fresh(principal)

    def is_confirmed(self, principal: Principal) -> bool:
        """Whether a principal is known to count now, without a look at the register."""
        if not self.is_ready(principal):
            return False
        try:
            self.tokens.confirm_at_once(principal)
        except Unauthenticated:
            return False
        return True

    def require(self, principal: Principal, need: Need) -> Principal:
        """Check a right without a command; return the principal with the rights that it has now."""
        principal = self.tokens.confirm_at_once(principal)
        principal.require(need)
        return principal

    def admit(
        self,
        principal: Principal,
        command: Command[T],
        holdings: ClaimCounts | None = None,
        *,
        traceparent: str | None = None,
        is_counted: bool = True,
        need: Need | None = None,
    ) -> Call[T]:
        """Admit a command in the order above, or raise the reason why not, and count the refusal.

        `holdings` are the claims of the client; without, the claims of all requests of the token count.
        `is_counted=False` is for frames of rooms: a room bounds the frames of each connection, and
        thousands of its clients may share one token. `need` is the right that an endpoint requires in
        place of the rights that the command declares.
        """
        kind = type(command)
        try:
            principal = self.tokens.confirm_at_once(principal)
            _check_rights(principal, command, need)
            check_command(command)
            command = principal.signed(command)
            command = bounded(command, self._settings, self._limits)
            if traceparent is not None:
                command = traced(command, traceparent, self._limits)
            call: Call[T] = Call(self, principal, command, holdings, need)
            call.reserve(is_counted=is_counted)
        except Exception as error:
            self.meter.failed(kind, error)
            raise
        if self.tracer.is_on(call.began_s):
            call.spans = self.tracer.begin(call.command, traceparent)
        return call

    def holdings_of(self, principal: Principal) -> ClaimCounts:
        """Return the claims that all requests of a principal's token hold together."""
        holdings = self._holdings.get(principal.token)
        if holdings is None:
            if len(self._holdings) >= HOLDERS_MAX:
                now_ms = self.now_ms()
                self._holdings = {
                    token: counted
                    for token, counted in self._holdings.items()
                    if not counted.is_empty(now_ms)
                }
                self._holder_names = {
                    token: name
                    for token, name in self._holder_names.items()
                    if token in self._holdings
                }
            holdings = ClaimCounts(self._settings.claims_open_max)
            self._holdings[principal.token] = holdings
            self._holder_names[principal.token] = principal.name
        return holdings

    def http_claims(self) -> list[tuple[str, ClaimCounts]]:
        """Return the name of each token with claims over HTTP, and the claims."""
        return [(self._holder_names[token], claims) for token, claims in self._holdings.items()]

    def now_ms(self) -> int:
        """Return the store time, by which leases run."""
        return self._state.time.now()[1]


class Call(Generic[T]):
    """One admitted command, and everything that is held for it until `settle` or `cancel`."""

    __slots__ = (
        "_admission",
        "_holds",
        "_is_counted",
        "_reserved",
        "began_s",
        "command",
        "holdings",
        "need",
        "principal",
        "spans",
        "waits",
    )

    def __init__(
        self,
        admission: Admission,
        principal: Principal,
        command: Command[T],
        holdings: ClaimCounts | None,
        need: Need | None = None,
    ) -> None:
        self._admission = admission
        self.principal = principal
        """The client, with the rights that it had when the command was admitted."""
        self.command = command
        """The command as it is to be carried out."""
        self.need = need
        """The right that stands in place of the rights that the command declares."""
        traits = command.traits
        self._holds = traits.holds
        if holdings is None and traits.holds:
            holdings = admission.holdings_of(principal)
        self.holdings = holdings
        self.waits = traits.waits is not None and waits(command)
        self._is_counted = False
        self._reserved: ClaimMessages | None = None
        self.spans: Any = None
        self.began_s = admission.seconds()

    @property
    def turns(self) -> Turns | None:
        """The turns in which queries of the token run; None for clients without a token."""
        if not self.principal.token:
            return None
        return self._admission.quota.turns(self.principal)

    @property
    def must_confirm(self) -> bool:
        """Whether rights must be checked again before the answer is sent, since it has waited."""
        return self.waits and bool(self.principal.token)

    def reserve(self, *, is_counted: bool) -> None:
        """Take the share of the token's requests and the free space for claims; see the order."""
        admission, command = self._admission, self.command
        if is_counted and self.principal.token and not self.waits:
            admission.quota.requests.take(self.principal)
            self._is_counted = True
        if isinstance(command, ClaimMessages):
            assert self.holdings is not None
            try:
                self._reserved = self.holdings.reserve(command, admission.now_ms)
            except BaseException:
                self._give_back()
                raise
            self.command = self._reserved  # type: ignore[assignment]

    def confirm(self) -> None:
        """Check again that the client may ask for this; the token's entry must be fresh."""
        principal = self._admission.tokens.confirm_at_once(self.principal)
        _check_rights(principal, self.command, self.need)

    def settle(self, answer: Any) -> None:
        """Account for the answer, or for the exception in its place, and give back all that is held."""
        if self._is_counted or self._reserved is not None:
            self._give_back()
        admission, command = self._admission, self.command
        if isinstance(answer, Exception):
            admission.meter.failed(type(command), answer)
            self._note_if_slow(admission.seconds())
        elif not isinstance(answer, BaseException):  # a cancelled command has no answer to count
            if self._holds and self.holdings is not None:
                self.holdings.note(command, answer)
            ended_s = admission.seconds()
            admission.meter.answered(type(command), ended_s - self.began_s)
            if ended_s - self.began_s >= admission.slow.slow_s:
                self._note_if_slow(ended_s)
            if self._holds:
                admission.tracer.answered(command, answer)
        if self.spans is not None:
            self._end_spans(answer)

    def _note_if_slow(self, ended_s: float) -> None:
        """Log a slow command, unless the client has asked it to wait."""
        slow = self._admission.slow
        if not self.waits and ended_s - self.began_s >= slow.slow_s:
            slow.note(self.command, self.principal.name, self.began_s, ended_s)

    def cancel(self) -> None:
        """Release the quotas of a call without an answer. A second call does nothing."""
        self._give_back()
        self._end_spans(None)

    def _give_back(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self._admission.quota.requests.give(self.principal)
        if self._reserved is not None:
            assert self.holdings is not None
            self.holdings.release(self._reserved)
            self._reserved = None

    def _end_spans(self, answer: Any) -> None:
        spans, self.spans = self.spans, None
        if spans is not None:
            self._admission.tracer.end(spans, answer)


def _check_rights(principal: Principal, command: Command[Any], need: Need | None) -> None:
    """Refuse a command that is not allowed: by the right of its endpoint, or by its own rights.

    A listing needs no right: it has only the names that the principal may see.
    """
    if need is None or command.traits.needs == "seen":
        principal.check(command)
    else:
        principal.require(need)
