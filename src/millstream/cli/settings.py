"""The settings of a queue as they are typed, and as they are shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from millstream.queue.model.backoff import Backoff
    from millstream.queue.model.spec import QueueSpec

_DURATIONS = ("lease", "delay", "priority_step", "dedup_window")
_NEEDS = {
    "priority_step_ms": "priority_by",
    "group_in_flight": "group_by",
    "group_rate": "group_by",
    "dedup_window_ms": "dedup_by",
}
"""Settings that mean nothing without another one."""


@dataclass(frozen=True)
class Settings:
    """What `queue create` and `queue alter` can set; None is what was not named."""

    source: Annotated[
        list[str] | None,
        typer.Option("--source", metavar="LOG", help="A log, or a pattern such as 'orders*'."),
    ] = None
    filter: Annotated[
        str | None, typer.Option("--filter", metavar="FILTER", help="Only records that match.")
    ] = None
    max_attempts: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="After so many it has failed.", show_default="5"),
    ] = None
    lease: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long a claim holds.", show_default="30s"),
    ] = None
    backoff: Annotated[
        str | None,
        typer.Option(
            metavar="WAITS",
            help="Before a retry: 5s, or 1s,10s,1m, or 1s*2 to double each time.",
            show_default="1s*2",
        ),
    ] = None
    delay: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Hold every message back.", show_default="0s"),
    ] = None
    priority_by: Annotated[
        str | None,
        typer.Option(
            metavar="HEADER", help="The header that holds a priority, 0 to 9; 9 is the soonest."
        ),
    ] = None
    priority_step: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="One level of priority is worth so much waiting.",
            show_default="1m",
        ),
    ] = None
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="HEADER", help="The header that names a message's group; _key for its key."
        ),
    ] = None
    group_in_flight: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Of one group at once: 1 keeps its order; 0 is any number, shared fairly.",
            show_default="1",
        ),
    ] = None
    group_rate: Annotated[
        float | None,
        typer.Option(metavar="N", min=0, help="Claims per second of one group; 0 is any number."),
    ] = None
    max_in_flight: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Messages in flight at once; 0 is any number."),
    ] = None
    rate: Annotated[
        float | None,
        typer.Option(metavar="N", min=0, help="Claims per second; 0 is any number."),
    ] = None
    dedup_by: Annotated[
        str | None,
        typer.Option(
            metavar="HEADER", help="The header by which repeats are known and dropped; or _key."
        ),
    ] = None
    dedup_window: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long a message is known for that.", show_default="5m"
        ),
    ] = None
    done_retention: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long what is done is known.", show_default="7d"),
    ] = None
    bucket_exponent: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="10^N claims are stored together.", show_default="3"),
    ] = None
    dead_letter: Annotated[
        str | None, typer.Option(metavar="LOG", help="Publish failed messages there as well.")
    ] = None
    keep_payloads: Annotated[
        bool | None,
        typer.Option(
            "--keep-payloads/--drop-payloads", help="Of what is done.", show_default="drop"
        ),
    ] = None
    lossy: Annotated[
        bool | None,
        typer.Option(
            "--lossy/--lossless",
            help="Whether logs may forget what it has not looked at.",
            show_default="lossless",
        ),
    ] = None
    description: Annotated[str | None, typer.Option(metavar="TEXT", help="What it is for.")] = None
    router: Annotated[
        str | None,
        typer.Option(metavar="WHO", help="Who routes it: 'spark', or '' for the queue itself."),
    ] = None

    def fields(self) -> dict[str, Any]:
        """What was named, as fields of a spec."""
        from millstream.cli.arguments import parse_duration
        from millstream.queue.model.spec import QueueSpec
        from millstream.record import to_ms

        found = {name: value for name, value in asdict(self).items() if value is not None}
        if "source" in found:
            found["sources"] = tuple(filter(None, found.pop("source")))
        for name in _DURATIONS:
            if name in found:
                found[f"{name}_ms"] = to_ms(parse_duration(found.pop(name)))
        if found.get("lease_ms", 0) > QueueSpec().lease_max_ms:
            found["lease_max_ms"] = found["lease_ms"]
        if "done_retention" in found:
            found["done_retention_s"] = -(
                -to_ms(parse_duration(found.pop("done_retention"))) // 1000
            )
        if "backoff" in found:
            found["backoff"] = parse_backoff(found["backoff"])
        return found


def changed(spec: QueueSpec, fields: dict[str, Any]) -> QueueSpec:
    """A spec with other fields; one that would mean nothing is refused."""
    from msgspec.structs import replace

    new = replace(spec, **fields)
    for name, other in _NEEDS.items():
        if name in fields and not getattr(new, other):
            raise typer.BadParameter(f"{_option(name)} means nothing without {_option(other)}")
    return new


def _option(field: str) -> str:
    return "--" + field.removesuffix("_ms").replace("_", "-")


def parse_backoff(text: str) -> Backoff:
    """A backoff from `5s`, `1s,10s,1m` or `1s*2`."""
    from millstream.cli.arguments import parse_duration
    from millstream.queue.model.backoff import Backoff
    from millstream.record import to_ms

    first, times, factor = text.partition("*")
    waits = tuple(to_ms(parse_duration(part)) for part in first.split(","))
    if times:
        try:
            return Backoff(first_ms=waits[0], factor=float(factor))
        except ValueError:
            raise typer.BadParameter(f"a growing backoff is like 1s*2, not {text!r}") from None
    if len(waits) == 1:
        return Backoff(kind="fixed", first_ms=waits[0], jitter=0.0)
    return Backoff(kind="list", waits_ms=waits, jitter=0.0)


def spec_facts(spec: QueueSpec) -> list[tuple[str, str]]:
    """How messages are worked on, for people."""
    from millstream.cli.display import safe, span

    return [
        ("attempts", f"up to {spec.max_attempts:,}"),
        ("lease", span(spec.lease_ms)),
        ("backoff", _backoff_text(spec.backoff)),
        ("delay", span(spec.delay_ms) if spec.delay_ms else "-"),
        ("priorities", _priorities_text(spec)),
        ("groups", _groups_text(spec)),
        ("caps", _caps_text(spec)),
        ("repeats", _repeats_text(spec)),
        ("done retention", span(spec.done_retention_s * 1000)),
        ("dead letters", safe(spec.dead_letter) or "-"),
    ]


def _backoff_text(backoff: Backoff) -> str:
    from millstream.cli.display import span

    if backoff.kind == "list":
        return ",".join(span(ms) for ms in backoff.waits_ms)
    if backoff.kind == "fixed":
        return span(backoff.first_ms)
    return f"{span(backoff.first_ms)}*{backoff.factor:g}, up to {span(backoff.most_ms)}"


def _priorities_text(spec: QueueSpec) -> str:
    from millstream.cli.display import span

    if not spec.priority_by:
        return "-"
    return f"{_by(spec.priority_by)}, a level is worth {span(spec.priority_step_ms)} of waiting"


def _groups_text(spec: QueueSpec) -> str:
    if not spec.group_by:
        return "-"
    how = f"up to {spec.group_in_flight:,} of each in flight"
    if spec.ordered:
        how = "one of each at a time, in order"
    elif not spec.group_in_flight:
        how = "shared fairly"
    pace = f", {per_second(spec.group_rate)} each" if spec.group_rate else ""
    return f"{_by(spec.group_by)}, {how}{pace}"


def _caps_text(spec: QueueSpec) -> str:
    caps = []
    if spec.max_in_flight:
        caps.append(f"{spec.max_in_flight:,} in flight")
    if spec.rate:
        caps.append(per_second(spec.rate))
    return ", ".join(caps) or "-"


def _repeats_text(spec: QueueSpec) -> str:
    from millstream.cli.display import span

    if not spec.dedup_by:
        return "-"
    return f"{_by(spec.dedup_by)}, dropped within {span(spec.dedup_window_ms)}"


def _by(name: str) -> str:
    from millstream.cli.display import safe
    from millstream.queue.model.spec import KEY

    return "by key" if name == KEY else f"by header {safe(name)}"


def per_second(rate: float) -> str:
    """A rate as it was typed: 5, not 5.0; never 1e+06."""
    return f"{rate:,.6f}".rstrip("0").rstrip(".") + " per second"
