"""`help` of logs and cursors explains every parameter that may be left out."""

from __future__ import annotations

import inspect
import pydoc

import pytest

import millstream
from millstream import aio

NOUNS = [
    getattr(surface, name)
    for surface in (millstream, aio)
    for name in ("Cursor", "Log", "PartitionedCursor", "PartitionedLog", "Stage")
]


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: f"{noun.__module__}.{noun.__name__}")
def test_every_parameter_with_a_default_is_explained(noun: type) -> None:
    missing = [
        f"{name}({parameter.name})"
        for name, method in inspect.getmembers(noun, inspect.isfunction)
        if method.__module__.startswith("millstream") and not name.startswith("_")
        for parameter in inspect.signature(method).parameters.values()
        if parameter.default is not parameter.empty
        and f"`{parameter.name}" not in (inspect.getdoc(method) or "")
    ]
    assert not missing


def test_help_shows_defaults_and_meanings() -> None:
    text = pydoc.plain(pydoc.render_doc(millstream.Log.cursor))
    assert "durable: 'bool' = True" in text
    assert "on_loss: 'OnLoss' = 'skip'" in text
    assert '`start` is "earliest", "latest", an offset' in text
