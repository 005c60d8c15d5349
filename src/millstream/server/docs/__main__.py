"""Print the OpenAPI document: `python -m millstream.server.docs > openapi.json`."""

from __future__ import annotations

import os
import sys

import msgspec

from millstream.server.docs import openapi
from millstream.server.docs.endpoints import ENDPOINTS

document = msgspec.json.encode(openapi.document(ENDPOINTS))
sys.stdout.buffer.write(msgspec.json.format(document, indent=1) + b"\n")
sys.stdout.flush()
os._exit(0)  # see `endpoints`: the interpreter's last garbage collection may crash
