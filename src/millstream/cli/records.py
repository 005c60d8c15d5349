"""`millstream queue records`: a queue as the RFC's records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from millstream.cli.config import DEFAULT_STORE, StorePath, existing_queue, opened

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.")]
RecordsJson = Annotated[
    bool, typer.Option("--json", help="One JSON object per record: key and value in hex.")
]


def records(
    queue: QueueName, store: StorePath = Path(DEFAULT_STORE), json: RecordsJson = False
) -> None:
    """Print a queue as the records of OpenData-Queue's RFC: key and value in hex, and what they say."""
    from millstream.cli import display

    with opened(store) as ms:
        for record in existing_queue(ms, queue).records():
            key, value, said = record.key.hex(), record.value.hex(), record.describe()
            if json:
                display.say_json({"key": key, "value": value, "description": said})
            else:
                display.say(f"{key}\t{value}\t{display.safe(said)}")
