"""Options that commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from millstream.cli.options import takes


@dataclass(frozen=True)
class Wind:
    speed: Annotated[int | None, typer.Option(metavar="N", min=0, show_default="5")] = None
    gusty: Annotated[bool, typer.Option("--gusty")] = False


def app() -> typer.Typer:
    found = typer.Typer(rich_markup_mode=None)

    @found.command()
    @takes(Wind)
    def blow(sails: str, *, given: Wind, far: int = 1) -> None:
        typer.echo(f"{sails} {given} {far}")

    @found.command()
    @takes(Wind, show_defaults=False)
    def turn(*, given: Wind) -> None:
        typer.echo(given)

    return found


def said(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app(), list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_a_command_gets_shared_options_as_one_value() -> None:
    assert said("blow", "four", "--speed", "3", "--far", "2") == (
        "four Wind(speed=3, gusty=False) 2\n"
    )
    assert said("turn", "--gusty") == "Wind(speed=None, gusty=True)\n"


def test_shared_options_stand_where_the_value_stands_and_are_checked() -> None:
    text = said("blow", "--help")
    assert text.index("--speed") < text.index("--gusty") < text.index("--far")
    assert "--given" not in text
    said("blow", "four", "--speed", "-1", code=2)


def test_defaults_are_shown_only_where_they_count() -> None:
    assert "default: (5)" in said("blow", "--help")
    assert "default" not in said("turn", "--help")
