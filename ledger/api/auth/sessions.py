"""Sessions of people: a signed cookie that expires, and opens nothing by itself.

The cookie holds a time and either a token's id or a subject of OpenID Connect with the value of its claim
that allows something, under a key that only the server has. The token is looked up at every request, so
revoking it ends its sessions; what the value allows is looked up in the settings. A subject's session opens
nothing once the settings name another issuer, client or claim.
A session that its owner ended is kept in the database
until it would have expired, so a copy of its cookie opens nothing on any server. Without a key in the
settings, each server makes one when it starts: its sessions then end with it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from shuffle_ledger.ledger import security_log
from shuffle_ledger.ledger.access import AccessToken, end_session, session_ended, token_by_id
from shuffle_ledger.ledger.api.auth.oidc_settings import OidcSettings, access_of
from shuffle_ledger.ledger.security_log import Event
from shuffle_ledger.ledger.storage.store import Store

COOKIE = "shuffle_ledger_session"
SESSION_SECONDS = 8 * 3600
# Whose session it is (a token's id, or a subject with its grant in base64url), its end, its nonce, the MAC.
_WRITTEN = re.compile(
    r"([0-9a-f]{16}|~[A-Za-z0-9_-]{1,2000})\.([0-9]{1,12})\.([0-9a-f]{32})\.([0-9a-f]{64})", re.ASCII
)


class Sessions:
    """Makes and reads session cookies."""

    def __init__(self, key: str | None = None, oidc: OidcSettings | None = None) -> None:
        self._key = key.encode("utf-8") if key else secrets.token_bytes(32)
        self._oidc = oidc
        client_id = oidc.client.client_id if oidc and oidc.client else None
        signing_in = [oidc.issuer, client_id, oidc.roles_claim] if oidc else []
        self._signing_in = hashlib.sha256(json.dumps(signing_in).encode()).hexdigest()

    def start(self, token: AccessToken) -> str:
        """Return the cookie of a new session of a token's bearer."""
        return self._started(token.token_id)

    def start_of_subject(self, actor: str, grant: str) -> str:
        """Return the cookie of a new session of a subject; `grant` is the value that allows something."""
        written = base64.urlsafe_b64encode(json.dumps([actor, grant], ensure_ascii=False).encode()).decode(
            "ascii"
        )
        return self._started("~" + written.rstrip("="))

    def own(self, cookies: Iterable[str]) -> str:
        """Return the cookie that is a session of this server; empty if none is, or several are: another host
        of the same domain may have set one of these."""
        found = {cookie for cookie in cookies if self._session(cookie) is not None}
        return found.pop() if len(found) == 1 else ""

    def bearer(self, store: Store, cookie: str) -> AccessToken | None:
        """Return whose session a cookie is; None if it is none, has ended, or its token is not valid."""
        found = self._session(cookie)
        if found is None:
            return None
        whose, expires_at, session_id = found
        subject = self._subject(whose, expires_at) if whose.startswith("~") else None
        token_id = subject.token_id if subject else whose[:16]
        if session_ended(store, session_id):
            security_log.record(Event.ENDED_SESSION_USED, token_id=token_id)
            return None
        return subject if whose.startswith("~") else token_by_id(store, token_id)

    def end(self, store: Store, cookie: str) -> None:
        """End a cookie's session on every server. Raises TryAgain, Unavailable: the session may go on."""
        found = self._session(cookie)
        if found is not None:
            _, expires_at, session_id = found
            end_session(store, session_id, expires_at=datetime.fromtimestamp(expires_at, UTC))

    def _started(self, whose: str) -> str:
        content = f"{whose}.{int(time.time()) + SESSION_SECONDS}.{secrets.token_hex(16)}"
        return f"{content}.{self.mac(self._purpose(whose), content)}"

    def _purpose(self, whose: str) -> str:
        return f"session by {self._signing_in}" if whose.startswith("~") else "session"

    def _subject(self, whose: str, expires_at: int) -> AccessToken | None:
        actor, grant = json.loads(base64.urlsafe_b64decode(whose[1:] + "=" * (-len(whose[1:]) % 4)))
        granted = self._oidc.grants.get(grant) if self._oidc and self._oidc.client else None
        return access_of(actor, granted, expires_at=expires_at) if granted else None

    def _session(self, cookie: str) -> tuple[str, int, str] | None:
        """Return whose session it is, its end and its identifier; None if the cookie is not valid."""
        written = _WRITTEN.fullmatch(cookie)
        if written is None:
            return None
        whose, ends, nonce, mac = written.groups()
        expected = self.mac(self._purpose(whose), f"{whose}.{ends}.{nonce}")
        if not hmac.compare_digest(mac, expected) or int(ends) <= time.time():
            return None
        return whose, int(ends), nonce

    def form_secret(self, cookie: str) -> str:
        """Return what a form of this session must send back; no other site can know it."""
        return self.mac("form", cookie)

    def mac(self, purpose: str, content: str) -> str:
        """Return what only this server, and those with its key, can make of a content for a purpose."""
        return hmac.new(self._key, f"{purpose}:{content}".encode(), hashlib.sha256).hexdigest()
