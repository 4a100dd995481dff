"""Who may write: who shows a token; on loopback anyone, as long as none exists."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from .guard import cross_site, is_cross_site
from .problems import ProblemError
from .state import StoreDep, state_of

_bearer = HTTPBearer(
    auto_error=False, scheme_name="token", description="A token that `pfatune token create NAME` printed."
)


def may_write(request: Request, authorization: str) -> None:
    """Check the token of a request that changes something.

    Raises:
        ProblemError: tokens are needed, and the one shown is missing or not valid.
    """
    state = state_of(request)
    store = state.store
    scheme, _, text = authorization.partition(" ")
    if scheme.lower() == "bearer" and text.strip():
        if store.tokens.check(text.strip()) is None:
            raise _refused("the token is not valid or was revoked")
    elif state.needs_token or store.tokens.any():
        raise _refused("no token was sent")


def _refused(what: str) -> ProblemError:
    text = f"{what}: send `Authorization: Bearer TOKEN`, with a token that `pfatune token create NAME` prints"
    return ProblemError(401, "token", "A token is needed", text, headers={"WWW-Authenticate": "Bearer"})


def require_token(
    request: Request, store: StoreDep, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Dependency of every endpoint that writes."""
    may_write(request, request.headers.get("authorization", ""))


def require_token_to_enqueue(request: Request) -> None:
    """For a read that writes when asked to; unlike a POST, a page of any site could send it.

    Raises:
        ProblemError: it may not.
    """
    if is_cross_site(request.headers):
        raise cross_site()
    may_write(request, request.headers.get("authorization", ""))


Writer = Depends(require_token)
