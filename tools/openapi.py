"""Writes the OpenAPI document of the server into the package, or checks that it is as it should be.

Usage: openapi.py [--check]

It is made from the table of endpoints beforehand rather than by each server: msgspec, having made
schemas of many types, sometimes crashes the interpreter's last collection. So this script leaves
without one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from millstream.server.docs import openapi
from millstream.server.rest import DOCUMENTED

PLACE = (
    Path(__file__).resolve().parent.parent
    / "src"
    / "millstream"
    / "server"
    / "docs"
    / "openapi.json"
)


def main(arguments: list[str]) -> int:
    """Write it, or compare; 1 if it is not up to date."""
    made = msgspec.json.format(msgspec.json.encode(openapi.document(DOCUMENTED)), indent=1) + b"\n"
    if "--check" in arguments:
        same = PLACE.exists() and PLACE.read_bytes() == made
        print("up to date" if same else f"{PLACE.name} is old: run python tools/openapi.py")
        return 0 if same else 1
    PLACE.write_bytes(made)
    print(f"wrote {PLACE.name}, {len(made):,} bytes")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
