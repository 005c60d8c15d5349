"""Install the wheel of dist/ into empty environments, one per extra, and try each.

    python tools/try_wheel.py [extra ...]

Every extra is installed alone: what one extra needs must not come from another. A trial imports the
modules that the extra is for, and runs one command.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INSTALL_S = 900
TRIAL_S = 120

TRIALS: dict[str, tuple[str, tuple[str, ...]]] = {
    "": ("millstream, millstream.aio, millstream.jobs", ("append", "orders", "one")),
    "client": ("millstream.remote.opening, websockets", ("read", "orders")),
    "server": ("millstream.server.serving", ("serve", "--help")),
    "arrow": (
        "millstream.exchange.parquet_table",
        ("export", "orders", "--output", "orders.parquet"),
    ),
    "zstd": ("zstandard, millstream.format.encodings", ("read", "orders")),
    "s3": ("millstream.engine.slate.engine", ("log", "list")),
    "cluster": ("nats, millstream.cluster.nats", ("cluster", "--help")),
    "spark": ("pyarrow", ("spark", "--help")),
}
"""For each extra: the modules to import, and the command to run on a store with a record."""


def main(names: Sequence[str]) -> int:
    """Try the named extras, or all; return the exit code."""
    unknown = [name for name in names if name not in TRIALS]
    if unknown:
        print(f"no trial for the extra {unknown[0]!r}; there are {', '.join(filter(None, TRIALS))}")
        return 2
    wheels = sorted((ROOT / "dist").glob("millstream-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        print("there is no wheel in dist/; `make dist` builds it")
        return 2
    failed = [name for name in names or TRIALS if not tried(wheels[-1], name)]
    return 1 if failed else 0


def tried(wheel: Path, extra: str) -> bool:
    """Install the wheel with an extra, try it, and print the outcome."""
    modules, command = TRIALS[extra]
    label = f"millstream[{extra}]" if extra else "millstream"
    folder = Path(tempfile.mkdtemp(prefix="millstream-wheel-"))
    try:
        venv.create(folder / "env", with_pip=True)
        scripts = folder / "env" / "bin"
        target = f"{wheel}[{extra}]" if extra else str(wheel)
        install = [scripts / "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", target]
        program = scripts / "millstream"
        steps = [
            (install, INSTALL_S),
            ([scripts / "python", "-W", "error", "-c", f"import {modules}"], TRIAL_S),
            ([program, "append", "orders", "first"], TRIAL_S),
            ([program, *command], TRIAL_S),
        ]
        for words, limit_s in steps:
            outcome = subprocess.run(
                [str(word) for word in words],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=limit_s,
            )
            if outcome.returncode:
                print(f"{label}: {' '.join(map(str, words))} failed\n{outcome.stderr}")
                return False
    except subprocess.TimeoutExpired as error:
        print(f"{label}: no end after {error.timeout:.0f} s: {error.cmd}")
        return False
    finally:
        shutil.rmtree(folder)
    print(f"{label}: installed and tried", flush=True)
    return True


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
