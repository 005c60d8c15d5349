"""Print the OpenAPI document, for `make generate`.

After making schemas of many types, msgspec sometimes crashes the interpreter's last garbage
collection. So this process exits without a last collection.
"""

from __future__ import annotations

import os
import sys

import msgspec

from millstream.server.docs import openapi
from millstream.server.docs.endpoints import ENDPOINTS

document = msgspec.json.encode(openapi.document(ENDPOINTS))
sys.stdout.buffer.write(msgspec.json.format(document, indent=1) + b"\n")
sys.stdout.flush()
os._exit(0)
