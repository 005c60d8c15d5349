"""Certificates for tests: an authority, and what it signs for this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-days", "2")


class Certificates(NamedTuple):
    """PEM files."""

    certificate: Path
    key: Path
    ca: Path


def make_certificates(folder: Path) -> Certificates:
    """An authority of its own, and a certificate for 127.0.0.1, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Certificates(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")
    ca_key = folder / "ca-key.pem"
    _openssl("req", "-x509", *KEY, "-subj", "/CN=tests", "-keyout", ca_key, "-out", made.ca)
    asked = [*KEY, "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    signed = ["-CA", made.ca, "-CAkey", ca_key, "-keyout", made.key, "-out", made.certificate]
    _openssl("req", "-x509", *asked, "-addext", "basicConstraints=CA:FALSE", *signed)
    return made


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
