"""The Python files below a folder, and which of them changed: for `--reload`.

Files are compared by their times and sizes, which are looked up again and again. Notifications of
the kernel would need a library for each system, and are lost on network folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

FILES_MAX = 20_000
"""More files are not watched: the folder is not a project."""
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


class SourceFiles:
    """Remembers the state of all Python files below a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._seen = self._look()

    def changes(self) -> list[str]:
        """Return the files that changed, came or went since the last call, by relative path."""
        before, self._seen = self._seen, self._look()
        names = before.keys() | self._seen.keys()
        return sorted(name for name in names if before.get(name) != self._seen.get(name))

    def _look(self) -> dict[str, tuple[int, int]]:
        state = {}
        for path in self._paths():
            try:
                facts = os.stat(path)
            except OSError:
                continue  # the file was removed after the listing
            state[os.path.relpath(path, self._folder)] = (facts.st_mtime_ns, facts.st_size)
            if len(state) == FILES_MAX:
                break
        return state

    def _paths(self) -> Iterator[str]:
        for folder, folders, names in os.walk(self._folder):
            folders[:] = [
                name
                for name in folders
                if name not in _SKIPPED
                and not name.startswith(".")
                and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
            ]
            yield from (os.path.join(folder, name) for name in names if name.endswith(".py"))
