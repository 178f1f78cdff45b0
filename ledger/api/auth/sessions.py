"""Sessions of people: a signed cookie that expires, and opens nothing by itself.

The cookie holds a time and a token's id, under a key that only the server has. The token is looked up at
every request, so revoking it ends its sessions. A session that its owner ended is kept in the database until
it would have expired, so a copy of its cookie opens nothing on any server. Without a key in the settings,
each server makes one when it starts: its sessions then end with it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from shuffle_ledger.ledger import security_log
from shuffle_ledger.ledger.access import AccessToken, end_session, session_ended, token_by_id
from shuffle_ledger.ledger.security_log import SecurityEvent
from shuffle_ledger.ledger.storage.store import Store

COOKIE = "shuffle_ledger_session"
SESSION_SECONDS = 8 * 3600
# Whose session it is (a token's id), its end, its nonce, the MAC.
_WRITTEN = re.compile(r"([0-9a-f]{16})\.([0-9]{1,12})\.([0-9a-f]{32})\.([0-9a-f]{64})", re.ASCII)


class Sessions:
    """Makes and reads session cookies."""

    def __init__(self, key: str | None = None) -> None:
        self._key = key.encode("utf-8") if key else secrets.token_bytes(32)

    def start(self, token: AccessToken) -> str:
        """Return the cookie of a new session of a token's bearer."""
        content = f"{token.token_id}.{int(time.time()) + SESSION_SECONDS}.{secrets.token_hex(16)}"
        return f"{content}.{self._mac('session', content)}"

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
        token_id, _, session_id = found
        if session_ended(store, session_id):
            security_log.record(SecurityEvent.ENDED_SESSION_USED, token_id=token_id)
            return None
        return token_by_id(store, token_id)

    def end(self, store: Store, cookie: str) -> None:
        """End a cookie's session on every server. Raises TryAgain, Unavailable: the session may go on."""
        found = self._session(cookie)
        if found is not None:
            _, expires_at, session_id = found
            end_session(store, session_id, expires_at=datetime.fromtimestamp(expires_at, UTC))

    def _session(self, cookie: str) -> tuple[str, int, str] | None:
        """Return whose session it is, its end and its identifier; None if the cookie is not valid."""
        written = _WRITTEN.fullmatch(cookie)
        if written is None:
            return None
        token_id, ends, nonce, mac = written.groups()
        expected = self._mac("session", f"{token_id}.{ends}.{nonce}")
        if not hmac.compare_digest(mac, expected) or int(ends) <= time.time():
            return None
        return token_id, int(ends), nonce

    def form_secret(self, bearer: str) -> str:
        """Return what a form must send back in a session, or with a token of the issuer; no other site can
        know it. `bearer`: the session's cookie, or the token's id."""
        return self._mac("form", bearer)

    def _mac(self, purpose: str, content: str) -> str:
        """Return what only this server, and those with its key, can make of a content for a purpose."""
        return hmac.new(self._key, f"{purpose}:{content}".encode(), hashlib.sha256).hexdigest()
