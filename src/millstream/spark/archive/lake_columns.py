"""Columns of archive tables, and the property of a commit that notes the ends of the logs."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec
import pyarrow as pa

from millstream.objects.address import settings_of
from millstream.spark.archive.folders import BucketFolder, Folder
from millstream.spark.source.layout import arrow_schema, log_schema
from millstream.spark.source.positions import LogIds, Position, packed, unpacked


def archive_schema() -> pa.Schema:
    """The columns of archived files."""
    from pyspark.sql.types import StructType

    return arrow_schema(
        StructType([field for field in log_schema("typed") if field.name != "partition"])
    )


def text_of(ends: Position, ids: LogIds | None = None) -> str:
    """Where a commit ends, as a property."""
    return msgspec.json.encode(packed(ends, ids)).decode()


def position_of(text: str | None) -> Position:
    """Read the ends of the logs from the property of a commit."""
    return unpacked(msgspec.json.decode(text)) if text else {}


def bucket_settings(
    folder: Folder, names: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """What a library is told of a bucket, by its own names for it; the rest it finds itself."""
    if not isinstance(folder, BucketFolder):
        return {}
    settings = settings_of(folder.address, environment)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if region and folder.address.scheme == "s3":
        settings.setdefault("region", region)
    return {names[key]: value for key, value in settings.items() if key in names}
