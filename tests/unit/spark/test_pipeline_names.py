"""Promise: a pipeline has the same parameters as a function and as a command, under the same names."""

from __future__ import annotations

import functools
import inspect
from importlib import import_module
from typing import Any

import pytest
import typer

from millstream.cli import app

PIPELINES = ("archive", "compact", "redrive", "replay", "report", "route", "table")
GIVEN = {"spark", "store", "progress", "stop"}
"""What a command finds out itself."""


@functools.cache
def command_of(pipeline: str) -> Any:
    found: Any = typer.main.get_command(app)
    for name in ("spark", "run", pipeline):
        found = found.commands[name]
    return found


def names_of(command: Any) -> set[str]:
    """Parameters as they are typed, with those that may be repeated in the plural."""
    return {_name(parameter) for parameter in command.params}


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.name)
    name: str = next(one for one in parameter.opts if one.startswith("--"))
    name = name.removeprefix("--").replace("-", "_")
    is_plural = getattr(parameter, "multiple", False) and name != "by"
    return f"{name}s" if is_plural else name


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_function_and_its_command_have_the_same_parameters(pipeline: str) -> None:
    common = set.intersection(*(names_of(command_of(one)) for one in PIPELINES))
    function = getattr(import_module(f"millstream.spark.pipelines.{pipeline}"), pipeline)
    parameters = set(inspect.signature(function).parameters) - GIVEN
    assert names_of(command_of(pipeline)) - common == parameters


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_the_help_shows_the_defaults_of_the_function(pipeline: str) -> None:
    function = getattr(import_module(f"millstream.spark.pipelines.{pipeline}"), pipeline)
    parameters = inspect.signature(function).parameters
    options = getattr(import_module("millstream.cli.spark"), f"{pipeline.capitalize()}Options")()
    for name in options.__struct_fields__:
        shown, default = getattr(options, name), parameters[name].default
        assert shown == default or not (shown or default), name
