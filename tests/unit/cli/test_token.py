"""`millstream token`: create, list, revoke."""

from __future__ import annotations

from typing import Any

import millstream
from millstream.server.auth.register import LOG, Registrar


def test_a_token_is_printed_once(cli: Any) -> None:
    text = cli("token", "create", "ci", "--allow", "log:write:orders*", "--allow", "store:read")
    assert text.startswith("ms_")
    assert len(text.splitlines()) == 1  # so that a script can take it
    assert "shown only now" in cli.stderr
    secret = text.strip().split("_", 2)[2]
    listed = cli("token", "list")
    assert secret not in listed
    assert secret not in cli("token", "list", "--json")
    assert secret not in cli("log", "info", LOG)
    title, line = (row.split("\t") for row in listed.splitlines())
    assert title == ["token", "id", "may", "created", "expires"]
    assert (line[0], line[2], line[4]) == ("ci", "log:write:orders* store:read", "never")


def test_json_holds_everything(cli: Any) -> None:
    made = cli.json("token", "create", "ci", "--allow", "*:admin", "--expires", "30d")
    assert made["token"].startswith(f"ms_{made['id']}_")
    assert made["expires"] == made["created"] + 30 * 86_400_000
    del made["token"]
    assert cli.json("token", "list") == [made]
    assert not {"digest", "sealed"} & made.keys()
    assert cli.json("token", "revoke", "ci", "-y") == {
        "token": "ci",
        "id": made["id"],
        "revoked": True,
    }
    assert cli.json("token", "list") == []


def test_a_token_is_revoked_by_its_name_or_id(cli: Any) -> None:
    cli("token", "create", "a", "--allow", "log:read")
    found = cli.json("token", "create", "b", "--allow", "log:read")
    assert cli("token", "revoke", "a", "-y") == "a revoked\n"
    assert cli("token", "revoke", found["id"], "-y") == "b revoked\n"
    assert "token list" in cli.error("token", "revoke", "a", "-y")
    cli("token", "list")
    assert "no tokens" in cli.stderr


def test_what_cannot_be_is_refused(cli: Any) -> None:
    cli("token", "create", "a", "--allow", "log:read")
    assert "revoke it first" in cli.error("token", "create", "a", "--allow", "log:read")
    assert "NOUN:ACTION" in cli.error("token", "create", "b", "--allow", "everything")
    assert "queue:read:mail" in cli.error("token", "create", "b", "--allow", "log:read:queue:mail")
    cli("token", "create", "b", code=2)
    cli("token", "create", "b", "--allow", "log:read", "--expires", "soon", code=2)
    assert "positive" in cli.error("token", "create", "b", "--allow", "log:read", "--expires", "0s")


def test_an_expired_token_says_so(cli: Any) -> None:
    with millstream.open("millstream.db") as ms:
        from millstream.server.auth.tokens import create_token
        from millstream.testing import SimulatedClock

        create_token(ms, "old", ["log:read"], expires_ms=1, clock=SimulatedClock())
        assert [one.name for one in Registrar(ms).tokens()] == ["old"]
    assert cli("token", "list").splitlines()[1].endswith("\texpired")
