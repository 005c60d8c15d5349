"""Asking before something is lost: on a terminal, unless the user has said yes already."""

from __future__ import annotations

import sys

import typer


def confirm(question: str, *, yes: bool) -> None:
    """Go on, or end the command; scripts are not asked."""
    if yes or not sys.stdin.isatty():
        return
    if not typer.confirm(question, err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(1)
