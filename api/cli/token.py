"""``pfatune token``: who may write over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError
from . import options, output

if TYPE_CHECKING:
    from ...db.tokens import TokenRecord

EXAMPLES = """
[bold]Examples[/]

  pfatune token create nightly
    prints a token, once: only its hash is kept

  curl -H "Authorization: Bearer $TOKEN" ...
    how it is shown to the service

  pfatune token list
  pfatune token revoke nightly
"""

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", epilog=EXAMPLES)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: 1 to 64 printable characters.")]


@app.callback()
def token() -> None:
    """Create, list and revoke the tokens of the HTTP service.

    Without any token, everyone who reaches the service may write. As soon as
    one exists, POST and DELETE need one; reading never does. A service that
    is reachable from other machines does not start without one.
    """


@app.command()
def create(name: Name, db: options.Db = None, as_json: options.Json = False) -> int:
    """Create a token and print it. It cannot be shown again."""
    from ...db.store import Store
    from ..settings import load_settings

    with Store.open(load_settings(db=db).db) as store:
        try:
            record, text = store.tokens.create(name)
        except ValueError as error:
            raise InputError(str(error)) from None
    if as_json:
        output.print_json({**_document(record), "token": text})
    else:
        print(text)
    return 0


@app.command(name="list")
def list_tokens(db: options.Db = None, as_json: options.Json = False) -> int:
    """List the tokens by name; the tokens themselves are not kept."""
    from ..settings import load_settings
    from .lookup import open_if_there

    store = open_if_there(load_settings(db=db).db)
    records: Sequence[TokenRecord] = ()
    if store is not None:
        with store:
            records = store.tokens.list()
    if as_json:
        output.print_json({"tokens": [_document(record) for record in records]})
        return 0
    if not records:
        print("There are no tokens: whoever reaches the service may write.")
        return 0
    table = output.plain_table("name", "created", "state")
    for record in records:
        table.add_row(
            record.name, f"{record.created_at:%Y-%m-%d %H:%M} UTC", "revoked" if record.revoked_at else "valid"
        )
    output.console().print(table)
    return 0


@app.command()
def revoke(name: Name, db: options.Db = None) -> int:
    """Revoke a token: from now on it is refused."""
    from ...db.store import Store
    from ..settings import load_settings

    with Store.open(load_settings(db=db).db) as store:
        if not store.tokens.revoke(name):
            raise InputError(f"no valid token is named {name!r}: `pfatune token list` shows them")
    print(f"The token {name} is revoked.")
    return 0


def _document(record: TokenRecord) -> dict[str, str | None]:
    return {
        "name": record.name,
        "created_at": record.created_at.isoformat(),
        "revoked_at": record.revoked_at.isoformat() if record.revoked_at else None,
    }
