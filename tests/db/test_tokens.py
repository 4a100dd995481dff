"""The contract of tokens over every database."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from pfatune.db import Store, TokenExistsError, tokens
from pfatune.db.tables import token


def test_token_is_known_by_its_text(store: Store, target: str) -> None:
    assert not store.tokens.any()
    record, secret = store.tokens.create("ci")
    assert re.fullmatch(r"pft_[0-9a-f]{8}_[A-Za-z0-9_-]{43}", secret)
    assert secret.split("_")[1] == record.public
    assert store.tokens.check(secret) == record
    assert store.tokens.any()
    with Store.open(target, read_only=True) as reader:
        assert reader.tokens.check(secret) == record
        assert list(reader.tokens.list()) == [record]


def test_any_other_text_is_unknown(store: Store) -> None:
    record, secret = store.tokens.create("ci")
    last = "B" if secret[-1] == "A" else "A"
    for wrong in (
        "",
        "x",
        secret[:-1],
        secret[:-1] + last,
        secret + "A",
        secret + "\n",
        " " + secret,
        secret.replace(record.public, "00000000"),
        secret.upper(),
        f"pft_{record.public}_",
        "pft_é\ud800\0",
    ):
        assert store.tokens.check(wrong) is None


def test_text_is_not_in_the_database(store: Store) -> None:
    _, secret = store.tokens.create("ci")
    with store.database.read() as connection:
        stored = str(connection.execute(select(token)).all())
    assert secret not in stored
    assert secret.split("_", 2)[2] not in stored


def test_revoked_token_is_good_for_nothing_and_frees_its_name(store: Store) -> None:
    first, old = store.tokens.create("ci")
    with pytest.raises(TokenExistsError, match="a token named 'ci' is in use: choose another name, or revoke"):
        store.tokens.create("ci")
    assert store.tokens.revoke("ci")
    assert store.tokens.check(old) is None
    assert not store.tokens.any()
    assert not store.tokens.revoke("ci")
    second, new = store.tokens.create("ci")
    assert store.tokens.check(old) is None
    assert store.tokens.check(new) == second
    listed = store.tokens.list()
    assert [one.id for one in listed] == [first.id, second.id]
    assert listed[0].revoked_at is not None
    assert listed[1].revoked_at is None


@pytest.mark.parametrize("name", ["", "n" * 65, "a\nb", "a\0", "\ud800"])
def test_name_must_be_readable(store: Store, name: str) -> None:
    with pytest.raises(ValueError, match="give from 1 to 64 printable characters"):
        store.tokens.create(name)


def test_name_is_given_once_by_many_at_a_time(store: Store) -> None:
    def create(number: int) -> bool:
        try:
            store.tokens.create("ci")
        except TokenExistsError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(create, range(6))) == 1


def test_public_part_that_is_taken_is_drawn_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["00000001", "00000001", "00000002"])
    monkeypatch.setattr(tokens.secrets, "token_hex", lambda size: next(drawn))
    assert store.tokens.create("a")[0].public == "00000001"
    assert store.tokens.create("b")[0].public == "00000002"


def test_unknown_public_part_costs_a_comparison_too(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    record, secret = store.tokens.create("ci")
    compared: list[int] = []

    def compare(one: str, other: str) -> bool:
        compared.append(len(one) * len(other))
        return one == other

    monkeypatch.setattr(tokens.hmac, "compare_digest", compare)
    for wrong in (secret[:-2] + "--", secret.replace(record.public, "00000000"), "x"):
        assert store.tokens.check(wrong) is None
    assert compared == [64 * 64] * 3


@pytest.mark.parametrize(
    "statement", ["DELETE FROM token", "UPDATE token SET digest = 'x'", "UPDATE token SET name = 'x'"]
)
def test_database_itself_keeps_tokens(store: Store, statement: str) -> None:
    store.tokens.create("ci")
    with pytest.raises(IntegrityError, match="token is append-only"), store.database.write() as connection:
        connection.execute(text(statement))
