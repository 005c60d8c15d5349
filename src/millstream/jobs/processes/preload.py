"""Imports the application in a fork server, so that child processes start fast.

The fork server imports this module. `PRELOAD` names the folder and the module to import next. An
error is left to the child, which imports the module again and reports the error.
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress

PRELOAD = "MILLSTREAM_WORKER_PRELOAD"

_folder, _, _module = os.environ.pop(PRELOAD, "").rpartition(os.pathsep)
if _module:
    sys.path.insert(0, _folder)
    with suppress(Exception):  # the child imports the module again, and reports the error
        importlib.import_module(_module)
