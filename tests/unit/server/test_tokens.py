"""Tokens: made, listed, revoked, expired; and tickets made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.errors import (
    AlreadyExists,
    CorruptionError,
    InvalidInput,
    NotFound,
    Unauthenticated,
)
from millstream.log.commands import GetBounds, ReadBlocks
from millstream.server.auth import register, tickets
from millstream.server.auth.access import Principal
from millstream.server.auth.permission import parse_permission
from millstream.server.auth.register import LOG, Registrar, Token
from millstream.server.auth.tokens import create_token, digest_of
from millstream.testing import SimulatedClock, memory_store
from tests.unit.server.guarded import guarded, in_loop, other_handle

HOUR_MS = 3_600_000


def test_a_token_is_listed_without_its_secret() -> None:
    clock = SimulatedClock()
    with memory_store(clock=clock) as ms:
        token, text = create_token(ms, "ci", ["log:write:orders*"], expires_ms=HOUR_MS, clock=clock)
        secret = text.split("_", 2)[2]
        assert text.startswith(f"ms_{token.id}_")
        assert len(secret) >= 43
        assert Registrar(ms).tokens() == [token]
        assert token.expires == clock.wall_ms() + HOUR_MS
        assert not any(secret.encode() in record.value for record in ms.log(LOG).read())


def test_no_two_secrets_are_alike() -> None:
    with memory_store() as ms:
        texts = {create_token(ms, f"t{n}", ["store:read"])[1] for n in range(20)}
        assert len({text.split("_", 2)[2] for text in texts}) == 20


def test_a_name_is_taken_until_its_token_is_revoked() -> None:
    with memory_store() as ms:
        first, _ = create_token(ms, "ci", ["store:read"])
        with pytest.raises(AlreadyExists) as found:
            create_token(ms, "ci", ["*:admin"])
        assert "digest" not in f"{found.value}{found.value.data}"
        assert Registrar(ms).revoke("ci") == first
        with pytest.raises(NotFound):
            Registrar(ms).revoke("ci")
        second, _ = create_token(ms, "ci", ["store:read"])
        assert Registrar(ms).revoke(second.id) == second
        assert Registrar(ms).tokens() == []


@pytest.mark.parametrize("expires_ms", [0, -1, 10**15])
def test_a_token_lasts_for_a_sensible_time(expires_ms: int) -> None:
    with memory_store() as ms, pytest.raises(InvalidInput):
        create_token(ms, "ci", ["store:read"], expires_ms=expires_ms)


def made(number: int) -> Token:
    facts = {"digest": digest_of(f"secret{number}"), "permissions": ["log:read"], "created": 1}
    return Token(name=f"token{number:05}", id=f"{number:016x}", **facts)  # type: ignore[arg-type]


def test_tens_of_thousands_of_tokens_are_at_hand() -> None:
    async def test() -> None:
        async with guarded() as at:
            entries = [msgspec.json.encode(made(number)) for number in range(20_000)]
            for first in range(0, 20_000, 1_000):
                at.ms.log(LOG).append_many(entries[first : first + 1_000])
            _, text = create_token(at.ms, "one-more", ["store:read"])
            tokens = at.core.tokens
            assert (await tokens.authenticate(text)).name == "one-more"
            assert (await tokens.authenticate(f"ms_{7:016x}_secret7")).name == "token00007"
            assert len(Registrar(at.ms).tokens()) == 20_001
            assert Registrar(at.ms).revoke(f"{7:016x}").name == "token00007"
            at.let_tokens_age()
            with pytest.raises(Unauthenticated):
                await tokens.authenticate(f"ms_{7:016x}_secret7")
            assert (await tokens.authenticate(f"ms_{8:016x}_secret8")).name == "token00008"

    in_loop(test)


def test_a_server_reads_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with guarded() as at:
            first = at.token("log:read", name="first")
            tokens = at.core.tokens
            await tokens.authenticate(first)
            asked: list[Any] = []
            execute = at.core.session.execute

            async def watched(command: Any) -> Any:
                asked.append(command)
                return await execute(command)

            monkeypatch.setattr(at.core.session, "execute", watched)
            second = at.token("log:read", name="second")
            at.let_tokens_age()
            await tokens.authenticate(second)
            reads = [one for one in asked if isinstance(one, ReadBlocks)]
            assert [(one.start, one.stop) for one in reads] == [(1, 2)]

    in_loop(test)


def test_a_register_of_tokens_that_are_gone_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "TIDY_ENTRIES_MIN", 20)

    async def test() -> None:
        async with guarded() as at:
            kept = at.token("log:read", name="kept")
            tokens = at.core.tokens
            await tokens.authenticate(kept)
            for round_ in range(30):
                text = at.token("log:read", name="short")
                if round_ % 7 == 0:  # a server that looks now and then misses nothing
                    at.let_tokens_age()
                    assert (await tokens.authenticate(text)).name == "short"
                Registrar(at.ms).revoke("short")
            assert len(at.ms.log(LOG)) <= 21
            assert at.ms.log(LOG).start_offset() > 0
            assert [one.name for one in Registrar(at.ms).tokens()] == ["kept"]
            at.let_tokens_age()
            assert (await tokens.authenticate(kept)).name == "kept"
            with pytest.raises(Unauthenticated):
                await tokens.authenticate(text)

    in_loop(test)


def test_of_two_who_take_a_name_at_once_one_gets_it() -> None:
    with memory_store() as ms:
        one, two = Registrar(ms), Registrar(ms)
        assert one.tokens() == two.tokens() == []
        one.add(made(1))
        with pytest.raises(AlreadyExists):
            two.add(made(1))
        assert two.revoke("token00001").id == f"{1:016x}"
        one.add(made(1))


def test_a_register_that_was_deleted_lets_nobody_in() -> None:
    async def test() -> None:
        async with guarded() as at:
            text = at.token("log:read")
            tokens = at.core.tokens
            await tokens.authenticate(text)
            at.ms.log(LOG).delete()
            at.let_tokens_age()
            with pytest.raises(Unauthenticated):
                await tokens.authenticate(text)
            again = at.token("log:read")
            at.let_tokens_age()
            assert (await tokens.authenticate(again)).name == "t"

    in_loop(test)


def test_a_damaged_register_lets_nobody_in() -> None:
    async def test() -> None:
        async with guarded() as at:
            text = at.token("log:read")
            at.ms.log(LOG).append(b"not an entry")
            with pytest.raises(CorruptionError):
                await at.core.tokens.authenticate(text)
            with pytest.raises(CorruptionError):
                Registrar(at.ms).tokens()

    in_loop(test)


def test_a_token_names_who_comes_until_it_expires() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(clock=clock) as at:
            text = at.token("log:read", name="ci", expires_ms=HOUR_MS)
            tokens = at.core.tokens
            principal = await tokens.authenticate(text)
            assert principal.name == "ci"
            assert principal.permissions == (parse_permission("log:read"),)
            await tokens.confirm(principal)
            clock.advance(3_601)
            for refused in (tokens.authenticate(text), tokens.confirm(principal)):
                with pytest.raises(Unauthenticated):
                    await refused

    in_loop(test)


def test_anything_but_the_text_itself_is_refused() -> None:
    async def test() -> None:
        async with guarded() as at:
            text = at.token("log:read")
            prefix, identity, secret = text.split("_", 2)
            for wrong in (
                "",
                "ms_",
                "ms__",
                text[:-1],
                f"{text}x",
                f"wrong{text}",
                f"{identity}_{secret}",
                f"{prefix}_{identity}_",
                f"{prefix}_{identity[:-1]}_{secret}",
                f"{prefix}_{'0' * 16}_{secret}",
                f"{prefix}_{identity}_é",
                f"{prefix}_\ud800_\ud800",
            ):
                with pytest.raises(Unauthenticated):
                    await at.core.tokens.authenticate(wrong)

    in_loop(test)


def test_a_server_knows_within_a_second_what_another_process_revoked(tmp_path: Path) -> None:
    async def test() -> None:
        clock = SimulatedClock()
        path = tmp_path / "shared.db"
        async with guarded(path=path, clock=clock) as at:
            with other_handle(path) as elsewhere:
                _, text = create_token(elsewhere, "ci", ["log:read"], clock=clock)
                principal = await at.core.tokens.authenticate(text)
                await at.core.execute(principal, GetBounds("orders"))
                Registrar(elsewhere).revoke("ci")
                clock.advance(1.0)
                with pytest.raises(Unauthenticated):
                    await at.core.execute(principal, GetBounds("orders"))
                with pytest.raises(Unauthenticated):
                    await at.core.tokens.authenticate(text)
                _, again = create_token(elsewhere, "ci", ["log:read"], clock=clock)
                clock.advance(1.0)
                assert (await at.core.tokens.authenticate(again)).name == "ci"

    in_loop(test)


def test_entries_are_not_read_again_for_every_request() -> None:
    async def test() -> None:
        clock = SimulatedClock()
        async with guarded(clock=clock) as at:
            text = at.token("log:read")
            principal = await at.core.tokens.authenticate(text)
            Registrar(at.ms).revoke("t")
            clock.advance(0.4)
            await at.core.tokens.confirm(principal)  # still what was read
            clock.advance(0.2)
            await at.core.tokens.confirm(principal)  # begins to read, beside
            await at.core.tokens.close()
            with pytest.raises(Unauthenticated):
                await at.core.tokens.confirm(principal)

    in_loop(test)


# Tickets.

KEY = bytes(32)


def scoped(**change: Any) -> Principal:
    facts = {"name": "ci", "token": "1", "expires_ms": 2_000, "is_ticket": True, **change}
    return Principal(permissions=(parse_permission("log:read:a*"),), **facts)


def test_a_ticket_says_who_comes_and_for_what() -> None:
    assert tickets.verify(KEY, tickets.sign(KEY, scoped()), wall_ms=1_999) == scoped()


def test_a_ticket_of_another_key_time_or_content_is_refused() -> None:
    text = tickets.sign(KEY, scoped())
    content, _, signature = text.rpartition(".")
    other = tickets.sign(KEY, scoped(name="me"))
    for key, wrong, wall_ms in (
        (bytes(31) + b"x", text, 0),
        (KEY, text, 2_000),
        (KEY, text[:-2] + ("aa" if text[-2:] != "aa" else "bb"), 0),
        (KEY, f"{other.rpartition('.')[0]}.{signature}", 0),
        (KEY, content, 0),
        (KEY, f"{content}.", 0),
        (KEY, f".{signature}", 0),
        (KEY, "mt_é.ü", 0),
    ):
        with pytest.raises(Unauthenticated):
            tickets.verify(key, wrong, wall_ms=wall_ms)


def test_servers_of_one_store_share_the_key(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "shared.db"
        async with guarded(path=path) as one, guarded(path=path) as two:
            with pytest.raises(Unauthenticated):
                await one.core.tokens.ticket_key()  # whoever shows a ticket makes no key
            key = await one.core.tokens.make_ticket_key()
            assert len(key) == 32
            assert await two.core.tokens.make_ticket_key() == key
            assert await one.core.tokens.ticket_key() == key

    in_loop(test)
