"""Sealed secrets: what a server needs to verify signatures of tokens, unusable without its key file.

A signature (Signature V4) proves a secret without showing it, so a server must have the secret itself
to verify it; a digest is not enough. The register holds the secret sealed with a key that is not in
the store, but in a file beside it. So a copy or a backup of the store reveals no token. A store without
a folder of its own, such as a bucket, seals nothing: its tokens cannot sign.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from millstream.engine.disk import sync_folder

KEY_FILE = ".millstream-signing-key"
"""The file in the folder of the store; only the owner may read the file."""

KEY_BYTES = 32
SECRET_BYTES_MAX = 64


def signing_key(folder: Path | None, *, create: bool = False) -> bytes | None:
    """Return the key in a folder, or None; with `create`, the first call writes the file."""
    if folder is None:
        return None
    path = folder / KEY_FILE
    if create and not path.exists():
        draft = folder / f"{KEY_FILE}.{secrets.token_hex(8)}"
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process was faster
                os.link(draft, path)
            sync_folder(path)  # tokens that are sealed with the key are durable
        except OSError:
            return None  # a folder that cannot be written has no key
        finally:
            with suppress(OSError):
                draft.unlink()
    try:
        key = path.read_bytes()
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None


def sealed(key: bytes, identity: str, secret: str) -> str:
    """Return a token's secret, sealed; ids of tokens are never used twice."""
    return _masked(key, identity, secret.encode()).hex()


def opened(key: bytes, identity: str, text: str) -> str | None:
    """Return a sealed secret; None for text that is no sealed secret. The caller checks its digest."""
    try:
        return _masked(key, identity, bytes.fromhex(text)).decode()
    except ValueError:
        return None


def _masked(key: bytes, identity: str, data: bytes) -> bytes:
    if len(data) > SECRET_BYTES_MAX:
        raise ValueError("a secret is longer than its mask")
    mask = blake2b(identity.encode(), key=key, digest_size=SECRET_BYTES_MAX).digest()
    return bytes(left ^ right for left, right in zip(data, mask, strict=False))
