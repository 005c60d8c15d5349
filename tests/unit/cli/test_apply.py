"""`millstream apply` and `millstream dump`: the diff, the consent, the secrets, and a server."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millstream
from millstream.server.auth.register import Registrar
from millstream.server.auth.tokens import create_token, digest_of
from millstream.server.serving import running
from millstream.server.settings import Settings

FILE = """\
[logs.orders]
partitions = 2

[queues.mail]
sources = ["orders"]
lease = "1m"

[rooms.hall]
retained = ["rect"]

[schedules.nightly]
task = "shop:report"
every = "30 1 * * *"

[tokens.billing]
permissions = ["log:write:orders*"]
"""


@pytest.fixture
def file(cli: Any) -> Path:
    path = Path("topology.toml")
    path.write_text(FILE, encoding="utf-8")
    return path


def test_a_dry_run_shows_the_changes_and_makes_no_file(cli: Any, file: Path) -> None:
    shown = cli("apply", "topology.toml", "--dry-run")
    assert shown.splitlines()[:5] == [
        "+ log orders",
        "    partitions = 2",
        "+ queue mail",
        '    sources = ["orders"]',
        '    lease = "1m"',
    ]
    assert shown.splitlines()[-1] == "5 changes would be made"
    assert "ms_" not in shown
    assert not Path("millstream.db").exists()


def test_changes_are_shown_made_and_not_made_again(cli: Any, file: Path) -> None:
    shown = cli("apply", "topology.toml").splitlines()
    assert shown[-2] == "5 changes made"
    assert shown[-1].startswith("billing\tms_")
    assert "shown only now" in cli.stderr
    assert cli("apply", "topology.toml") == "nothing to change\n"
    assert cli.json("apply", "topology.toml") == {"changed": False, "changes": [], "secrets": {}}
    file.write_text(FILE.replace("1m", "2m"), encoding="utf-8")
    assert cli("apply", "topology.toml").splitlines() == [
        "~ queue mail",
        '    lease = "1m" -> "2m"',
        "1 change made",
    ]


def test_json_has_the_changes_and_the_secrets(cli: Any, file: Path) -> None:
    planned = cli.json("apply", "topology.toml", "--dry-run")
    made = cli.json("apply", "topology.toml")
    assert (planned["changed"], made["changed"]) == (False, True)
    assert planned["changes"] == made["changes"]
    assert made["secrets"]["billing"].startswith("ms_")
    assert made["changes"][1] == {
        "action": "create",
        "kind": "queue",
        "name": "mail",
        "settings": {"sources": [None, ["orders"]], "lease": [None, "1m"]},
        "loses": "",
    }


def test_a_dump_is_a_file_for_another_store(cli: Any, file: Path) -> None:
    cli("apply", "topology.toml")
    dumped = cli("dump")
    cli("apply", "-", "--store", "copy.db", input=dumped)
    assert cli("dump", "--store", "copy.db") == dumped
    in_json = cli("dump", "--json")
    cli("apply", "-", "--store", "third.db", input=in_json)
    assert cli("dump", "--store", "third.db") == dumped
    assert cli("apply", "-", "--prune", input=dumped) == "nothing to change\n"


def test_mistakes_are_told_before_a_store_is_made(cli: Any, file: Path) -> None:
    file.write_text(FILE.replace("lease", "leese").replace("every", "evrey"), encoding="utf-8")
    cli("apply", "topology.toml", code=1)
    assert cli.stderr.splitlines() == [
        "error: topology.toml, line 6: [queues.mail]: a queue has no setting 'leese': did you mean "
        "'lease'?",
        "error: topology.toml, line 13: [schedules.nightly]: a schedule has no setting 'evrey': did "
        "you mean 'every'?",
    ]
    assert not Path("millstream.db").exists()
    file.write_text("[logs", encoding="utf-8")
    assert "topology.toml: " in cli.error("apply", "topology.toml")
    assert "topology.txt" in cli.error("apply", "topology.txt")


def test_changes_that_are_not_allowed_change_nothing(cli: Any, file: Path) -> None:
    cli("apply", "topology.toml")
    before = cli("dump")
    text = FILE.replace("partitions = 2", "partitions = 1").replace('"1m"', '"5m"')
    file.write_text(text, encoding="utf-8")
    assert "never lowered" in cli.error("apply", "topology.toml")
    assert cli("dump") == before


def test_a_loss_of_data_needs_consent(cli: Any, file: Path) -> None:
    cli("apply", "topology.toml")
    cli("room", "send", "hall", "rect", "1", "--key", "a")
    file.write_text("[rooms.hall]\n", encoding="utf-8")
    cli("apply", "topology.toml", code=2)
    assert "the retained values of rect in room 'hall'" in cli.stderr
    file.write_text("[rooms]\n", encoding="utf-8")
    assert cli("apply", "topology.toml") == "nothing to change\n"
    cli("apply", "topology.toml", "--prune", code=2)
    assert "Use --yes" in cli.stderr
    assert cli("apply", "topology.toml", "--prune", "--yes").splitlines() == [
        "- room hall",
        "1 change made",
    ]
    assert cli.json("room", "list") == []


def test_secrets_are_written_to_a_file_that_only_its_owner_reads(cli: Any, file: Path) -> None:
    shown = cli("apply", "topology.toml", "--secrets", "tokens.json")
    assert "ms_" not in shown
    path = Path("tokens.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = msgspec.json.decode(path.read_bytes())
    with millstream.open("millstream.db") as ms:
        (token,) = Registrar(ms).tokens()
    assert first["billing"].startswith(f"ms_{token.id}_")
    file.write_text(FILE + '[tokens.web]\npermissions = ["admin"]\n', encoding="utf-8")
    cli("apply", "topology.toml", "--secrets", "tokens.json")
    both = msgspec.json.decode(path.read_bytes())
    assert (set(both), both["billing"]) == ({"billing", "web"}, first["billing"])


def test_a_foreign_file_of_secrets_is_not_overwritten(cli: Any, file: Path) -> None:
    Path("tokens.json").write_text("mine", encoding="utf-8")
    cli("apply", "topology.toml", "--secrets", "tokens.json", code=2)
    assert "no JSON object of texts" in " ".join(cli.stderr.split())
    assert Path("tokens.json").read_text(encoding="utf-8") == "mine"
    assert cli("dump") == "\n"


def test_a_server_is_changed_with_a_token(cli: Any, file: Path) -> None:
    with millstream.open("served.db") as ms:
        admin = create_token(ms, "root", ["admin"])[1]
        narrow = create_token(ms, "narrow", ["*:read"])[1]
    settings = Settings(port=0, auth="on")
    with running(cli.directory / "served.db", settings, durability="relaxed") as server:
        at = ("--store", server.url, "--token")
        assert "narrow" in cli.error("apply", "topology.toml", *at, narrow)
        made = cli.json("apply", "topology.toml", *at, admin)
        assert cli("apply", "topology.toml", *at, admin) == "nothing to change\n"
        dumped = cli("dump", *at, admin)
        assert "tokens are left out: " not in cli.stderr
        seen = cli("dump", *at, narrow)
        assert "tokens are left out: " in cli.stderr
        assert seen == dumped[: dumped.index("[tokens")].removesuffix("\n")
    with millstream.open("served.db") as ms:
        token = next(token for token in Registrar(ms).tokens() if token.name == "billing")
    assert token.digest == digest_of(made["secrets"]["billing"].split("_", 2)[2])
    assert cli("dump", "--store", "served.db") == dumped
