"""Sessions of people who logged in with a token: a signed cookie that expires, and says nothing by itself.

The cookie holds the token's id and a time, under a key that only the server has. The token itself is looked
up at every request, so revoking it ends its sessions. A session that its owner ended is kept in the database
until it would have expired, so a copy of its cookie opens nothing on any server. Without a key in the
settings, each server makes one when it starts: its sessions then end with it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from datetime import UTC, datetime

from shuffle_ledger.ledger import security_log
from shuffle_ledger.ledger.access import AccessToken, end_session, session_ended, token_by_id
from shuffle_ledger.ledger.security_log import Event
from shuffle_ledger.ledger.storage.store import Store

COOKIE = "shuffle_ledger_session"
SESSION_SECONDS = 8 * 3600
KEY_LENGTH_MIN = 32
_WRITTEN = re.compile(r"([0-9a-f]{16})\.([0-9]{1,12})\.([0-9a-f]{32})\.([0-9a-f]{64})", re.ASCII)


class Sessions:
    """Makes and reads session cookies."""

    def __init__(self, key: str | None = None) -> None:
        self._key = key.encode("utf-8") if key else secrets.token_bytes(32)

    def start(self, token: AccessToken) -> str:
        """Return the cookie of a new session."""
        content = f"{token.token_id}.{int(time.time()) + SESSION_SECONDS}.{secrets.token_hex(16)}"
        return f"{content}.{self._mac('session', content)}"

    def bearer(self, store: Store, cookie: str) -> AccessToken | None:
        """Return whose session a cookie is; None if it is none, has ended, or its token is not valid."""
        found = self._session(cookie)
        if found is None:
            return None
        token_id, _, session_id = found
        if session_ended(store, session_id):
            security_log.record(Event.ENDED_SESSION_USED, token_id=token_id)
            return None
        return token_by_id(store, token_id)

    def end(self, store: Store, cookie: str) -> None:
        """End a cookie's session on every server. Raises TryAgain, Unavailable: the session may go on."""
        found = self._session(cookie)
        if found is not None:
            _, expires_at, session_id = found
            end_session(store, session_id, expires_at=datetime.fromtimestamp(expires_at, UTC))

    def _session(self, cookie: str) -> tuple[str, int, str] | None:
        """Return a session's token, when it expires, and its identifier; None if the cookie is not valid."""
        written = _WRITTEN.fullmatch(cookie)
        if written is None:
            return None
        token_id, ends, nonce, mac = written.groups()
        expected = self._mac("session", f"{token_id}.{ends}.{nonce}")
        if not hmac.compare_digest(mac, expected) or int(ends) <= time.time():
            return None
        return token_id, int(ends), nonce

    def form_secret(self, cookie: str) -> str:
        """Return what a form of this session must send back; no other site can know it."""
        return self._mac("form", cookie)

    def _mac(self, purpose: str, content: str) -> str:
        return hmac.new(self._key, f"{purpose}:{content}".encode(), hashlib.sha256).hexdigest()
