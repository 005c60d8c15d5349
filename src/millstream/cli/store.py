"""`millstream stats` and `millstream fold`: the store as a whole."""

from __future__ import annotations

from pathlib import Path

from millstream.cli.config import DEFAULT_STORE, AsJson, StorePath, opened


def stats(store: StorePath = Path(DEFAULT_STORE), json: AsJson = False) -> None:
    """Show facts and counters of the store."""
    from millstream.cli import display

    with opened(store) as ms:
        facts = ms.stats()
        logs = list(ms.logs())
        facts |= {
            "logs": len(logs),
            "records": sum(len(info) for info in logs),
            "bytes": sum(info.bytes for info in logs),
        }
    if json:
        display.say_json(facts)
        return
    display.say_facts(
        (
            name.replace("_", " "),
            display.size(value) if name.endswith("bytes") else display.safe(str(value)),
        )
        for name, value in facts.items()
        if value is not None
    )


def fold(store: StorePath = Path(DEFAULT_STORE), json: AsJson = False) -> None:
    """Move every commit into its records now, rather than in the background."""
    from millstream.cli import display

    with opened(store) as ms:
        folded = ms.fold()
    if json:
        display.say_json({"folded": folded})
    else:
        display.say(f"{display.plural(folded, 'commit')} folded")
