"""Azurite, Microsoft's emulator of Azure Blob Storage, as a process of its own: `npm install azurite`.

Its program must be on the PATH, or named by `MILLSTREAM_AZURITE`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from urllib.parse import urlsplit

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has; Microsoft publishes its key."""

VERSION = "2021-12-02"
"""Of the protocol, as the container is created."""


def azurite_program() -> str | None:
    """Where its program is, or None."""
    return os.environ.get("MILLSTREAM_AZURITE") or shutil.which("azurite-blob")


@contextmanager
def azurite(container: str) -> Iterator[str]:
    """The address of a new Azurite with one container, for as long as the block runs."""
    program = azurite_program()
    assert program is not None
    options = ["--inMemoryPersistence", "--disableTelemetry", "--blobPort", "0"]
    with subprocess.Popen(
        [program, *options, "--blobHost", "127.0.0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            address = _address_of(process)
            _create(address, container)
            yield address
        finally:
            process.kill()


def _address_of(process: subprocess.Popen[str]) -> str:
    """Where it listens: it says so, and then nothing more."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        if found := re.search(r"listens on (http://\S+)", line):
            return found[1]
        said.append(line)
    raise RuntimeError(f"Azurite did not start: {''.join(said)}")


def _create(address: str, container: str) -> None:
    """Create a container: a request that is signed with the account's key."""
    path = f"/{ACCOUNT}/{container}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": VERSION}
    named = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    # The method, eleven headers that are not there, the named ones, and what is asked for.
    signed = "PUT" + "\n" * 12 + named + f"/{ACCOUNT}{path}\nrestype:container"
    digest = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        connection.request("PUT", f"{path}?restype=container", headers=headers)
        answer = connection.getresponse()
        if answer.status != 201:
            raise RuntimeError(f"Azurite did not create {container}: {answer.read().decode()}")
    finally:
        connection.close()
