"""`millstream dump`: describe a store as a file for `millstream apply`."""

from __future__ import annotations

from millstream import Millstream
from millstream.cli.display import Printed, note
from millstream.errors import Denied


def dump(ms: Millstream) -> Printed:
    """Describe a store as a file for `apply`. The file has the logs, queues, rooms, schedules
    and tokens.

    Settings with their default values are left out. Tokens are described without their secrets.
    """
    from millstream.topology.applying import dump as dump_topology
    from millstream.topology.writing import toml_of

    def left_out(table: str, error: Denied) -> None:
        note(f"{table} are left out: {error}")

    document = dump_topology(ms, leave_out=left_out)
    return Printed(document, toml_of(document).removesuffix("\n"))
