"""Addresses of object storage and their settings: `s3://bucket/prefix`, `gs://`, `az://`, `file:///`.

Credentials come from the usual environment variables. For S3 they may also come from the profile
in `AWS_PROFILE`, in the files of the AWS command line. `AWS_ENDPOINT_URL` names a store that imitates
S3, `STORAGE_EMULATOR_HOST` an emulator of Google Cloud Storage. An address may set options behind a
`?` (`engine/slate/options.py`).
"""

from __future__ import annotations

import configparser
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import unquote

from millstream.errors import CannotOpen

Scheme = Literal["s3", "gs", "az", "file", "memory"]
_TYPES: dict[Scheme, str] = {
    "s3": "S3",
    "gs": "GCS",
    "az": "AZURE",
    "file": "LOCAL",
    "memory": "IN_MEMORY",
}
SCHEMES = frozenset(_TYPES)

_ADDRESS = re.compile(r"(s3|gs|az|file|memory)://([^/?#]*)(/[^?#]*)?(?:\?([^#]*))?", re.IGNORECASE)


class ObjectAddress(NamedTuple):
    """The place of a store on object storage."""

    scheme: Scheme
    bucket: str
    prefix: str
    options: str = ""
    """The options behind the `?`, hidden in messages."""

    @property
    def text(self) -> str:
        """The address in messages."""
        root = "" if self.scheme == "file" else self.bucket
        return f"{self.scheme}://{root}/{self.prefix}".rstrip("/")


def parse_address(text: str) -> ObjectAddress:
    """Parse an address; `CannotOpen` names the mistake."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise _wrong(text, "it has no `#`, and one of s3, gs, az, file or memory before ://")
    scheme = cast(Scheme, match[1].lower())
    bucket, prefix, options = match[2], (match[3] or "").strip("/"), match[4] or ""
    if scheme == "file":
        if bucket not in ("", "localhost"):
            raise _wrong(text, "a folder has three slashes: file:///folder/of/the/store")
        return ObjectAddress(scheme, "", unquote(prefix), options)
    if scheme == "memory":
        return ObjectAddress(scheme, bucket, prefix or "store", options)
    if not bucket or "@" in bucket:
        raise _wrong(text, f"it names a bucket, and no password: {scheme}://bucket/prefix")
    return ObjectAddress(scheme, bucket, prefix or "millstream", options)


def settings_of(
    address: ObjectAddress, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return settings for an address that the client does not read from the environment itself."""
    if address.scheme == "gs":
        return _emulator(environment.get("STORAGE_EMULATOR_HOST", ""))
    if address.scheme != "s3":
        return {}
    settings: dict[str, str] = {}
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL", "")
    if endpoint:
        settings["endpoint"] = endpoint
    if endpoint.startswith("http://"):
        settings["allow_http"] = "true"
    if "AWS_ACCESS_KEY_ID" not in environment:
        settings |= _profile(environment)
    if "AWS_REGION" not in environment and "AWS_DEFAULT_REGION" not in environment:
        settings.setdefault("region", "us-east-1")
    return settings


def open_objects(module: Any, address: ObjectAddress) -> Any:
    """Return SlateDB's handle of the object store at an address."""
    kind = module.ObjectStoreType[_TYPES[address.scheme]]
    builder = module.ObjectStoreBuilder.from_env(kind)
    if address.scheme == "file":
        builder.with_config("local_path", "/")
    elif address.scheme != "memory":
        builder.with_url(f"{address.scheme}://{address.bucket}")
    for name, value in settings_of(address).items():
        builder.with_config(name, value)
    return builder.build()


def _emulator(host: str) -> dict[str, str]:
    """Return settings for an emulator of Google Cloud Storage, which needs no credentials."""
    if not host:
        return {}
    endpoint = host if "://" in host else f"http://{host}"
    account = {
        "gcs_base_url": endpoint.rstrip("/"),
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    settings = {"service_account_key": json.dumps(account)}
    if endpoint.startswith("http://"):
        settings["allow_http"] = "true"
    return settings


def _profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Return credentials and region of a profile in the files of the AWS command line."""
    name = environment.get("AWS_PROFILE", "default")
    home = Path(environment.get("HOME", "~")).expanduser() / ".aws"
    secret = environment.get("AWS_SHARED_CREDENTIALS_FILE", str(home / "credentials"))
    config = environment.get("AWS_CONFIG_FILE", str(home / "config"))
    files = configparser.ConfigParser(interpolation=None)
    files.read([config, secret])
    profile: dict[str, str] = {}
    for section in (f"profile {name}", name):
        if files.has_section(section):
            profile |= dict(files[section])
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
        "region": "region",
    }
    return {names[key]: value for key, value in profile.items() if key in names}


def _wrong(text: str, expected: str) -> CannotOpen:
    shown = text.rpartition("@")[2]
    return CannotOpen(f"{shown} is no address of object storage: {expected}", path=shown)
