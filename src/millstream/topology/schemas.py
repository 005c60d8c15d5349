"""Schemas in a topology: the setting of a file, its form in a dump, and its difference from a store.

A file names a schema by a path, beside the file, or has the schema itself. A log or queue that the file
gives no schema keeps its schema, because programs set schemas too. The command `millstream schema delete`
deletes a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream.errors import InvalidInput
from millstream.format.packing import check_json
from millstream.schema.evolution import conflicts_with
from millstream.schema.history import SchemaVersion, check_mode
from millstream.schema.model import TEXT_BYTES_MAX, StructType
from millstream.schema.outputs import json_schema_of
from millstream.schema.source import check_size, schema_of
from millstream.topology.model import SCHEMA_KEYS, WantedSchema
from millstream.topology.toml_file import from_plain, plain

Load = Callable[[str], str]
"""Returns the text of the file at a path."""


def loader(folder: Path) -> Load:
    """Return the function that reads files of schemas; their paths begin at a folder."""

    def load(path: str) -> str:
        try:
            with (folder / path).open(encoding="utf-8") as file:
                text = file.read(TEXT_BYTES_MAX + 1)
        except OSError as error:
            raise InvalidInput(
                f"schema = {path!r}: {error.strerror} ({folder / path}); name a file with a JSON Schema "
                "or an Avro schema, by its path from the folder of this file"
            ) from None
        except (UnicodeDecodeError, ValueError) as error:
            raise InvalidInput(f"schema = {path!r}: {error}") from None
        check_size(len(text))
        return text

    return load


def wanted_schema(table: Mapping[str, Any], load: Load) -> WantedSchema | None:
    """Return the schema that the table of a log or queue has; without a schema, return None."""
    source, mode = (table.get(key) for key in SCHEMA_KEYS)
    if source is None:
        if mode is not None:
            raise InvalidInput('schema_mode needs a schema: write schema = "order.json" beside it')
        return None
    if isinstance(source, Mapping):
        try:
            source = check_json(from_plain(source))
        except ValueError as error:
            raise InvalidInput(f"schema: {error}") from None
    elif isinstance(source, str) and source.lstrip()[:1] not in ("{", "["):
        source = load(source)
    return WantedSchema(schema_of(source), check_mode("enforce" if mode is None else mode))


def schema_table(versions: Sequence[SchemaVersion]) -> dict[str, Any]:
    """Return the settings of the newest version as a file has them; empty without a schema."""
    if not versions:
        return {}
    document = json_schema_of(versions[-1].schema)
    del document["$schema"]
    mode = versions[-1].mode
    return {"schema": plain(document), **({} if mode == "enforce" else {"schema_mode": mode})}


def schema_differences(
    wanted: WantedSchema | None, versions: Sequence[SchemaVersion]
) -> dict[str, tuple[Any, Any]]:
    """Return the changed parts of the schema, each property by its name, and the changed mode.

    A schema that the log had before changes the mode alone, as `set_schema` says.
    """
    if wanted is None:
        return {}
    before = _parts(versions[-1].schema) if versions else {}
    is_known = any(each.schema == wanted.schema for each in versions)
    after = before if is_known else _parts(wanted.schema)
    changed = {
        key: (before.get(key), after.get(key))
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    }
    mode = versions[-1].mode if versions else "enforce"
    return changed if mode == wanted.mode else {**changed, "schema_mode": (mode, wanted.mode)}


def schema_refusal(
    noun: str, wanted: WantedSchema | None, versions: Sequence[SchemaVersion]
) -> str:
    """Return why a log or queue cannot get the schema; an empty text if it can."""
    if wanted is None or any(each.schema == wanted.schema for each in versions):
        return ""
    breaks = conflicts_with([each.schema for each in versions], wanted.schema)
    if not breaks:
        return ""
    shown = "; ".join(breaks[:10]) + (f"; and {len(breaks) - 10} more" if len(breaks) > 10 else "")
    return (
        f"{noun}: the schema of the file does not fit version {versions[-1].version} of the store: "
        f"{shown}. Add optional fields and widen types; or set it by `set_schema(..., force=True)`, and "
        "apply the file again"
    )


def _parts(schema: StructType) -> dict[str, Any]:
    """Return the parts of a schema by the names that a diff shows."""
    document = json_schema_of(schema)
    properties = document.pop("properties")
    del document["$schema"]
    parts = {f"schema.{key}": value for key, value in document.items()}
    return parts | {f"schema.properties.{name}": each for name, each in properties.items()}
