"""Who may use the service: named tokens, of which only digests are kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from .engine import Database
from .errors import TokenExistsError
from .rows import Row
from .tables import UtcNow, token

MAX_NAME = 64
_TEXT = re.compile(r"pft_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
#: What the digest of no text is: compared with where there is no other, so that this takes as long.
_NO_DIGEST = "-" * 64
_TRIES = 5


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token without its secret. ``public`` is the part of its text that may be shown, to tell tokens apart."""

    id: int
    name: str
    public: str
    created_at: datetime
    revoked_at: datetime | None = None


class Tokens:
    """The tokens in one database. Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def create(self, name: str) -> tuple[TokenRecord, str]:
        """A new token and its text, which is given this once and can be had from nowhere later.

        Raises:
            TokenExistsError: a token of that name is in use.
            ValueError: the name is empty, too long or not printable.
        """
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise ValueError(f"token name {name!r} will not do: give from 1 to {MAX_NAME} printable characters")
        for _ in range(_TRIES):
            public = secrets.token_hex(4)
            text = f"pft_{public}_{secrets.token_urlsafe(32)}"
            row = {"name": name, "public": public, "digest": _digest(text)}
            try:
                with self.database.write() as connection:
                    in_use = select(token.c.id).where(token.c.name == name, token.c.revoked_at.is_(None))
                    if connection.execute(in_use).first() is not None:
                        raise TokenExistsError(token=name)
                    added = connection.execute(insert(token).values(row).returning(*token.c)).mappings().one()
                    return _record_of(added), text
            except IntegrityError:  # another process took the name, or chance the public part
                continue
        raise TokenExistsError(token=name)

    def revoke(self, name: str) -> bool:
        """Let the token of that name be good for nothing from now on; False when none is in use."""
        statement = update(token).where(token.c.name == name, token.c.revoked_at.is_(None))
        with self.database.write() as connection:
            return connection.execute(statement.values(revoked_at=UtcNow())).rowcount > 0

    def check(self, text: str) -> TokenRecord | None:
        """The token in use that has this text; None for any other text."""
        parts = _TEXT.fullmatch(text)
        public = parts[1] if parts else ""
        query = select(token).where(token.c.public == public, token.c.revoked_at.is_(None))
        with self.database.read() as connection:
            row = connection.execute(query).mappings().first()
        known = _NO_DIGEST if row is None else row["digest"]
        same = hmac.compare_digest(_digest(text), known)
        return _record_of(row) if same and row is not None else None

    def any(self) -> bool:
        """Whether at least one token is in use."""
        query = select(token.c.id).where(token.c.revoked_at.is_(None)).limit(1)
        with self.database.read() as connection:
            return connection.execute(query).first() is not None

    def list(self) -> Sequence[TokenRecord]:
        """Every token, oldest first, the revoked ones too."""
        with self.database.read() as connection:
            return [_record_of(row) for row in connection.execute(select(token).order_by(token.c.id)).mappings()]


def _digest(text: str) -> str:
    # A token is 256 random bits: nothing that slows down guessing is needed.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _record_of(row: Row) -> TokenRecord:
    return TokenRecord(row["id"], row["name"], row["public"], row["created_at"], row["revoked_at"])
