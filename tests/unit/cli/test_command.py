"""How functions become commands: shared options, options from structs, answers, examples."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from msgspec import Struct
from typer.testing import CliRunner

from millstream.cli import app as millstream_app
from millstream.cli.command import command
from millstream.cli.declared import Declared, Fields
from millstream.cli.display import FactSheet, Printed, PrintedLine, Table


@dataclass(frozen=True)
class Wind:
    speed: Annotated[int | None, typer.Option(metavar="N", min=0, show_default="5")] = None
    gusty: Annotated[bool, typer.Option("--gusty")] = False


class Boat(Struct, kw_only=True):
    crew: int = 3
    length_ms: int = 90_000
    load_bytes_max: int = 64 * 1024
    leaks_s: float = 0.5
    flags: tuple[str, ...] = ()
    steel: bool = False
    name: str = ""
    hidden: int = 0


HELPS = {
    "crew": "how many.",
    "length_ms": "how long.",
    "load_bytes_max": "the maximum load.",
    "leaks_s": "until then.",
    "flags": "FLAG: may be repeated.",
    "steel": "what it is of.",
    "name": "TEXT: a name.",
}


def app() -> typer.Typer:
    found = typer.Typer(rich_markup_mode=None)

    @command(found, "blow four --speed 3")
    def blow(sails: str, given: Wind, far: int = 1) -> None:
        typer.echo(f"{sails} {given} {far}")

    @command(found)
    def sail(given: Annotated[Fields, Declared(Boat, HELPS)]) -> Printed:
        return Printed(given, FactSheet([("sailed", True), ("boat\x1b", "\x1b")]))

    @command(found)
    def turn(given: Annotated[Fields, Declared(Boat, HELPS, show_defaults=False)]) -> Printed:
        return Printed(
            [], Table(("a",), [], none="nothing"), PrintedLine("noted", note=True), code=3
        )

    return found


def said(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app(), list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_a_command_gets_shared_options_as_one_value() -> None:
    assert said("blow", "four", "--speed", "3", "--far", "2") == (
        "four Wind(speed=3, gusty=False) 2\n"
    )
    said("blow", "four", "--speed", "-1", code=2)


def test_shared_options_stand_where_the_value_stands() -> None:
    text = said("blow", "--help")
    assert text.index("--speed") < text.index("--gusty") < text.index("--far")
    assert "--given" not in text
    assert "Examples:\n    millstream blow four --speed 3" in text


def test_fields_of_a_struct_are_typed_with_their_units() -> None:
    typed = {
        "--crew": "5",
        "--length": "2m",
        "--load-max": "1MiB",
        "--leaks": "250ms",
        "--name": "Ada",
    }
    options = [part for pair in typed.items() for part in pair]
    found = said("sail", *options, "--flag", "a", "--flag", "b", "--steel", "--json")
    assert found == (
        '{"crew":5,"length_ms":120000,"load_bytes_max":1048576,"leaks_s":0.25,"flags":["a","b"],'
        '"steel":true,"name":"Ada"}\n'
    )
    assert said("sail", "--no-steel", "--flag", "", "--json") == '{"flags":[],"steel":false}\n'
    assert said("sail", "--json") == "{}\n"
    said("sail", "--length", "long", code=2)
    said("sail", "--crew", "-1", code=2)


def test_defaults_are_shown_as_they_would_be_typed_and_only_where_they_count() -> None:
    text = " ".join(said("sail", "--help").split())
    for default in ("(3)", "(90s)", "(64KiB)", "(500ms)"):
        assert f"default: {default}" in text
    assert "hidden" not in text
    assert "default: " not in said("turn", "--help")


def test_an_answer_is_shown_for_people_or_as_json_and_has_an_exit_code() -> None:
    assert said("sail") == "sailed\tyes\nboat\x1b\t\\x1b\n"
    assert said("turn", code=3) == "nothing\nnoted\n"
    assert said("turn", "--json", code=3) == "[]\n"


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, child in getattr(command, "commands", {}).items():
        yield from leaves(child, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


LISTED_CHARS = 66
"""The width of a sentence beside the longest name, on a terminal of 80 columns."""

COMMANDS = dict(leaves(typer.main.get_command(millstream_app)))


def listed(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    for name, child in getattr(command, "commands", {}).items():
        yield " ".join((*path, name)), child.get_short_help_str(LISTED_CHARS)
        yield from listed(child, (*path, name))


def test_the_lists_of_commands_cut_no_sentence() -> None:
    lines = dict(listed(typer.main.get_command(millstream_app)))
    assert len(lines) > 90
    assert not {path: line for path, line in lines.items() if line.endswith("...")}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_what_is_typed_has_a_name_of_ours_in_the_help(path: tuple[str, ...]) -> None:
    found = COMMANDS[path]
    context = found.make_context(path[-1], [], resilient_parsing=True)
    assert not re.findall(r"<[a-z|]+(?: range)?>", found.get_help(context))


def test_a_help_begins_with_no_value_in_capitals_and_shows_flags_as_they_are_typed() -> None:
    found = COMMANDS["serve",]
    told = found.get_help(found.make_context("serve", [], resilient_parsing=True))
    assert "Balanced" not in told
    assert "[default: (rooms-across)]" in told


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_json_help_and_examples_that_parse(path: tuple[str, ...]) -> None:
    found = COMMANDS[path]
    assert found.help
    assert any("--json" in parameter.opts for parameter in found.params)
    _, *examples = found.epilog.splitlines()[1:]
    assert examples
    for example in examples:
        words = shlex.split(example.partition(" < ")[0])
        assert tuple(words[1 : len(path) + 1]) == path
        context = found.make_context(path[-1], words[len(path) + 1 :], resilient_parsing=False)
        assert not context.args
