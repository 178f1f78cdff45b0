"""Sign-in of people by OpenID Connect: authorization code with PKCE, state and nonce.

No address in a request decides where a browser is sent: the way out is the issuer's published address, the
way back is the one in the settings, and after it comes this server's first page.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from shuffle_ledger.ledger import security_log
from shuffle_ledger.ledger.api.auth.middleware import address_of, cookies_of
from shuffle_ledger.ledger.api.auth.oidc_settings import CALLBACK, BadToken, SignInClient, access_of
from shuffle_ledger.ledger.api.auth.sessions import COOKIE, SESSION_SECONDS, Sessions
from shuffle_ledger.ledger.api.dependencies import Asked, Service
from shuffle_ledger.ledger.api.pages.routes import login_page, page, set_cookie
from shuffle_ledger.ledger.errors import NotFound
from shuffle_ledger.ledger.security_log import Event

if TYPE_CHECKING:
    from shuffle_ledger.ledger.api.auth.issuer import OpenIdConnect

ATTEMPT_COOKIE = "shuffle_ledger_sign_in"
ATTEMPT_SECONDS = 600  # from the first page to the way back
CODE_LENGTH_MAX = 4096
_SECRET_BYTES = 32
_WRITTEN = re.compile(r"([\w-]{43})\.([\w-]{43})\.([\w-]{43})\.([0-9]{1,12})\.([0-9a-f]{64})", re.ASCII)
_NOT_SIGNED_IN = "You were not signed in. Try again; your account may have no access to this ledger."

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The secrets of one sign-in, which its browser keeps in a signed cookie."""

    state: str
    nonce: str
    verifier: str

    @classmethod
    def begin(cls) -> Attempt:
        """Returns a new attempt."""
        state, nonce, verifier = (secrets.token_urlsafe(_SECRET_BYTES) for _ in range(3))
        return cls(state=state, nonce=nonce, verifier=verifier)

    @classmethod
    def of_cookies(cls, sessions: Sessions, cookies: Iterable[str]) -> Attempt | None:
        """Returns the attempt that one of these holds; None if none does, or several do, as in
        `Sessions.own`."""
        found = {cls.of_cookie(sessions, cookie) for cookie in cookies} - {None}
        return found.pop() if len(found) == 1 else None

    @classmethod
    def of_cookie(cls, sessions: Sessions, cookie: str) -> Attempt | None:
        """Returns the attempt that a cookie of this server holds; None if it is none, or expired."""
        written = _WRITTEN.fullmatch(cookie)
        if written is None:
            return None
        state, nonce, verifier, ends, mac = written.groups()
        expected = sessions.mac("sign-in", f"{state}.{nonce}.{verifier}.{ends}")
        if not hmac.compare_digest(mac, expected) or int(ends) <= time.time():
            return None
        return cls(state=state, nonce=nonce, verifier=verifier)

    def cookie(self, sessions: Sessions) -> str:
        """Returns the cookie that holds it."""
        content = f"{self.state}.{self.nonce}.{self.verifier}.{int(time.time()) + ATTEMPT_SECONDS}"
        return f"{content}.{sessions.mac('sign-in', content)}"

    def question(self, client: SignInClient) -> str:
        """Returns the query with which the issuer is asked to sign somebody in."""
        from authlib.oauth2.rfc7636 import create_s256_code_challenge  # noqa: PLC0415 - an extra

        return urlencode(
            {
                "response_type": "code",
                "client_id": client.client_id,
                "redirect_uri": client.redirect_url,
                "scope": client.scopes,
                "state": self.state,
                "nonce": self.nonce,
                "code_challenge": create_s256_code_challenge(self.verifier),
                "code_challenge_method": "S256",
            }
        )


@router.get("/login/start")
async def start(request: Request, service: Asked) -> Response:
    """Send a browser to the issuer."""
    oidc, client = _offered(service)
    attempt = Attempt.begin()
    endpoint = await oidc.issuer.authorization_endpoint()
    separator = "&" if "?" in endpoint else "?"
    location = f"{endpoint}{separator}{attempt.question(client)}"
    answer = RedirectResponse(location, status_code=303, headers={"Cache-Control": "no-store"})
    # Lax: the browser comes back from another site, and must bring it along.
    set_cookie(
        request,
        answer,
        ATTEMPT_COOKIE,
        attempt.cookie(service.sessions),
        seconds=ATTEMPT_SECONDS,
        samesite="lax",
    )
    return answer


@router.get(CALLBACK)
async def finish(
    request: Request,
    service: Asked,
    code: str = "",
    state: str = "",
    iss: str | None = None,
) -> Response:
    """Start a session for the subject with whom a browser comes back from the issuer."""
    oidc, _ = _offered(service)
    if service.door.must_wait(request.scope) is not None:
        return login_page(request, status=429, wrong="Too many failed sign-ins: wait a while.")
    attempt = Attempt.of_cookies(service.sessions, cookies_of(request.scope, ATTEMPT_COOKIE))
    # What comes back without a code of this attempt is not counted: any site can make a browser begin and end
    # sign-ins, and nothing secret is guessed.
    answer: Response = login_page(request, status=401, wrong=_NOT_SIGNED_IN)
    if attempt is None:
        return answer
    if _answers(attempt, code, state) and iss in (None, oidc.settings.issuer):  # RFC 9207
        answer = await _redeemed(request, service, attempt, code)
    set_cookie(request, answer, ATTEMPT_COOKIE, "", seconds=0, samesite="lax")
    return answer


def _answers(attempt: Attempt, code: str, state: str) -> bool:
    """Returns whether a browser brings back a code that was asked for in it."""
    return 0 < len(code) <= CODE_LENGTH_MAX and hmac.compare_digest(state.encode(), attempt.state.encode())


async def _redeemed(request: Request, service: Service, attempt: Attempt, code: str) -> Response:
    """Returns the answer to a browser with the issuer's code; one that is refused is counted."""
    oidc, client = _offered(service)
    try:
        with service.door.trying(request.scope):
            token = await oidc.issuer.redeem(client, code=code, verifier=attempt.verifier)
            claims = await oidc.issuer.people_claims(token, client_id=client.client_id, nonce=attempt.nonce)
        actor, granting = oidc.allowed(claims)
    except BadToken as error:
        service.door.refuse(request.scope, why=str(error))
        return login_page(request, status=401, wrong=_NOT_SIGNED_IN)
    return _signed_in(request, service, oidc, actor, granting)


def _signed_in(
    request: Request, service: Service, oidc: OpenIdConnect, actor: str, granting: str
) -> Response:
    access = access_of(actor, oidc.settings.grants[granting], expires_at=time.time() + SESSION_SECONDS)
    security_log.record(
        Event.LOGGED_IN,
        token_id=access.token_id,
        name=access.name,
        role=access.role,
        address=address_of(request.scope),
    )
    # A page, not a redirection: a browser that comes from another site keeps a strict cookie, but does not
    # send it before it loads something by itself.
    answer = page("signed_in.html.jinja", request)
    answer.headers["Refresh"] = f"0; url={service.root_path}/"
    cookie = service.sessions.start_of_subject(actor, granting)
    set_cookie(request, answer, COOKIE, cookie, seconds=SESSION_SECONDS, samesite="strict")
    return answer


def _offered(service: Service) -> tuple[OpenIdConnect, SignInClient]:
    oidc = service.door.oidc
    if oidc is None or oidc.settings.client is None:
        raise NotFound("there is nothing at this address")
    return oidc, oidc.settings.client
