"""Passwords: hashed apart, a few at a time, and alike for who is not there."""

import asyncio

import pytest

from posthouse.broker import passwords
from posthouse.broker.passwords import Passwords, hashed, is_password
from posthouse.core.errors import Busy


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "N", 16)


def test_a_hash_fits_its_password_and_no_other() -> None:
    hash = hashed("sésame")
    assert hash.startswith("scrypt$16$8$1$")
    assert "sésame" not in hash
    assert hash != hashed("sésame")  # each has a salt of its own
    assert is_password("sésame", hash)
    assert not is_password("Sésame", hash)


def test_what_an_older_version_has_hashed_is_still_understood(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hash = hashed("x")
    monkeypatch.setattr(passwords, "N", 32)
    assert is_password("x", hash)


def test_where_there_is_no_hash_nothing_fits() -> None:
    async def main() -> None:
        assert not await Passwords().fits("", None)
        assert await Passwords().fits("x", await Passwords().hash("x"))

    asyncio.run(main())


def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "WAITING_MAX", 3)

    async def main() -> None:
        made = Passwords()
        found = await asyncio.gather(*(made.hash("x") for _ in range(5)), return_exceptions=True)
        assert [isinstance(each, Busy) for each in found] == [False] * 3 + [True] * 2
        assert await made.hash("x")

    asyncio.run(main())
