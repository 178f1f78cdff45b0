"""Access to the HTTP API: tokens, their roles, and the cohorts that they are limited to.

A token is shown once, as `sl_ID_SECRET`; the database keeps SHA-256 of the secret. The secret has 256 random
bits, so guessing is hopeless, with or without the digest. A slow hash protects secrets that people choose;
here it would protect nothing, and would let strangers make the server work hard.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from shuffle_ledger.accounting import exact_text
from shuffle_ledger.ledger import security_log
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, NotFound
from shuffle_ledger.ledger.roles import PERMISSIONS, Permission, Role
from shuffle_ledger.ledger.security_log import SecurityEvent
from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage import tokens as access_rows
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.tokens import StoredToken
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.quotas import checked_team
from shuffle_ledger.ledger.values.texts import checked_text

LIFETIME_DAYS = 90.0
LIFETIME_DAYS_MAX = 3660.0
SCOPE_MAX = 1000  # cohorts
# Actors that an issuer of OpenID Connect names: a subject, or its digest. No token is issued for them.
SUBJECT_PREFIX, SUBJECT_PREFIX_HASHED = "oidc:", "oidc-sha256:"
_DAY_SECONDS = 86_400
_ID_BYTES, _SECRET_BYTES = 8, 32
_WRITTEN = re.compile(rf"sl_([0-9a-f]{{{2 * _ID_BYTES}}})_([0-9a-f]{{{2 * _SECRET_BYTES}}})", re.ASCII)
# A malformed token is compared as this one, so that it takes the same steps, and time, as a well-formed one.
_NOBODY, _NOTHING = "-" * 2 * _ID_BYTES, "0" * 2 * _SECRET_BYTES


@dataclass(frozen=True, kw_only=True)
class AccessToken:
    """A token as everybody may see it: all but the secret."""

    token_id: str
    name: str  # the actor of what its bearer does
    role: Role
    cohorts: tuple[str, ...] | None  # None: every cohort
    created_by: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    team: str | None = None  # its rounds are charged to this team's quotas

    def may(self, permission: Permission) -> bool:
        """Return whether the role has a permission."""
        return permission in PERMISSIONS[self.role]

    def sees(self, cohort: str) -> bool:
        """Return whether a cohort, or that of a window's period, is among those the token is limited to."""
        return self.cohorts is None or not {cohort, cohort.rpartition("@")[0]}.isdisjoint(self.cohorts)


@dataclass(frozen=True, kw_only=True)
class IssuedToken:
    """A token with its text, which is known now and never again."""

    token: str
    issued: AccessToken


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """A new token, and the one that it replaces as it is now."""

    new: IssuedToken
    old: AccessToken


def issue(
    store: Store,
    *,
    name: str,
    role: str,
    actor: str,
    cohorts: Iterable[str] | None = None,
    lifetime_days: float = LIFETIME_DAYS,
    team: str | None = None,
) -> IssuedToken:
    """Issue a token that expires by the database's clock; a cohort it names need not exist yet.

    Raises:
        InvalidValue: a name, role, lifetime, team or cohort that cannot be one, or the name of a subject of
            OpenID Connect.
    """
    if is_subject(checked_text("name", name)):
        expected = f"a name that begins neither with {SUBJECT_PREFIX} nor with {SUBJECT_PREFIX_HASHED}"
        raise InvalidValue(field="name", value=name, expected=expected)
    scope = None if cohorts is None else _checked_scope(cohorts)
    if role not in set(Role):
        raise InvalidValue(field="role", value=role, expected="one of: " + ", ".join(Role))
    if not 0 < lifetime_days <= LIFETIME_DAYS_MAX:
        expected = f"a number of days above 0 and at most {exact_text(LIFETIME_DAYS_MAX)}"
        raise InvalidValue(field="lifetime_days", value=lifetime_days, expected=expected)
    secret = secrets.token_hex(_SECRET_BYTES)
    with engine.writing(store.engine) as connection:
        now = engine.database_time(connection)
        stored = StoredToken(
            token_id=secrets.token_hex(_ID_BYTES),
            name=checked_text("name", name),
            secret_digest=_digest(secret),
            role=Role(role),
            cohorts=None if scope is None else canonical.encode(scope),
            created_by=checked_text("actor", actor),
            created_at=now,
            expires_at=now + timedelta(days=lifetime_days),
            revoked_at=None,
            team=None if team is None else checked_team(team),
        )
        access_rows.insert_token(connection, stored)
    security_log.record(
        SecurityEvent.TOKEN_CREATED,
        token_id=stored.token_id,
        name=stored.name,
        role=stored.role,
        limited_to_cohorts=None if scope is None else len(scope),
        expires_at=stored.expires_at.isoformat(),
        actor=stored.created_by,
    )
    return IssuedToken(token=f"sl_{stored.token_id}_{secret}", issued=_public(stored))


def rotate(
    store: Store,
    token: str,
    *,
    actor: str,
    lifetime_days: float | None = None,
    overlap: timedelta | None = None,
) -> Rotation:
    """Issue a token with the name, role, team and cohorts of another, and end that one if it is asked for.

    Args:
        store: the ledger.
        token: the other token's identifier, though it may have expired; or its name, if only one token of
            that name is valid.
        actor: for the record.
        lifetime_days: of the new token; None: as long as the other one was issued for.
        overlap: how long the other one stays valid, by the database's clock: zero revokes it now; it never
            gets a longer life than it had. None: until it expires or is revoked.

    Raises:
        NotFound: no such token, and none that is valid of this name.
        Conflict: it was revoked, or several tokens of this name are valid.
        InvalidValue: as `issue`, or a negative overlap.
    """
    if overlap is not None and overlap < timedelta():
        raise InvalidValue(field="overlap", value=str(overlap), expected="a duration of at least 0")
    stored = _to_rotate(store, token)
    old = _public(stored)
    lifetime = (old.expires_at - old.created_at).total_seconds() / _DAY_SECONDS
    issued = issue(
        store,
        name=old.name,
        role=old.role,
        actor=actor,
        cohorts=old.cohorts,
        team=old.team,
        lifetime_days=lifetime if lifetime_days is None else lifetime_days,
    )
    if overlap == timedelta():
        old = revoke(store, old.token_id, actor=actor)
    elif overlap is not None:
        with engine.writing(store.engine) as connection:
            ends_at = engine.database_time(connection) + overlap
            access_rows.expire_by(connection, old.token_id, ends_at)
            old = replace(old, expires_at=min(old.expires_at, ends_at))
    security_log.record(
        SecurityEvent.TOKEN_ROTATED,
        token_id=old.token_id,
        new_token_id=issued.issued.token_id,
        name=old.name,
        role=old.role,
        ends_at=(old.revoked_at or old.expires_at).isoformat(),
        actor=actor,
    )
    return Rotation(new=issued, old=old)


def _to_rotate(store: Store, token: str) -> StoredToken:
    """Return the token with an identifier, or else the only valid one of a name."""
    with engine.reading(store.engine) as connection:
        stored, now = access_rows.token_row(connection, token), engine.database_time(connection)
        named = [] if stored else [each for each in access_rows.token_rows(connection) if each.name == token]
    valid = [each for each in named if _is_valid(each, now)]
    if len(valid) > 1:
        ids = ", ".join(each.token_id for each in valid)
        raise Conflict(f"{len(valid)} tokens of {token!r} are valid: name one of them by its id: {ids}")
    if stored is None and not valid:
        hint = ", and none that is valid of this name" if named else ""
        raise NotFound(f"no token {token!r}{hint}")
    found = stored or valid[0]
    if found.revoked_at is not None:
        raise Conflict(f"token {found.token_id!r} was revoked: create a new one instead")
    return found


def authenticate(store: Store, text: str) -> AccessToken | None:
    """Return the token a text is; None if it is none, unknown, expired or revoked.

    **Guarantee**: whatever is wrong, the same steps are taken, and nothing about a stored token decides when
    the comparison of the secret ends.
    """
    written = _WRITTEN.fullmatch(text)
    token_id, secret = written.groups() if written else (_NOBODY, _NOTHING)
    found = _stored_now(store, token_id)
    expected = found[0].secret_digest if found else bytes(canonical.DIGEST_BYTES)
    same = hmac.compare_digest(_digest(secret), expected)
    return _public(found[0]) if found and same and _is_valid(*found) else None


def token_by_id(store: Store, token_id: str) -> AccessToken | None:
    """Returns the token with this identifier if it is valid now, else None. The caller has proved before that
    it holds the secret."""
    found = _stored_now(store, token_id)
    return _public(found[0]) if found and _is_valid(*found) else None


def end_session(store: Store, session_id: str, *, expires_at: datetime) -> bool:
    """End a session before it expires; return whether it had not been ended yet.

    Raises:
        TryAgain, Unavailable: the session may go on.
    """
    with engine.writing(store.engine) as connection:
        return access_rows.insert_ended_session(connection, session_id, expires_at)


def session_ended(store: Store, session_id: str) -> bool:
    """Return whether a session was ended before it expired."""
    with engine.reading_once(store.engine) as connection:
        return access_rows.is_ended_session(connection, session_id)


def tokens(store: Store) -> list[AccessToken]:
    """Return every token there is or was, in the order of issue."""
    with engine.reading(store.engine) as connection:
        return [_public(stored) for stored in access_rows.token_rows(connection)]


def is_subject(name: str) -> bool:
    """Return whether an actor's name is reserved for a subject of OpenID Connect."""
    return name.startswith((SUBJECT_PREFIX, SUBJECT_PREFIX_HASHED))


def tokens_named_as_subjects(store: Store) -> list[str]:
    """Return the identifiers of valid tokens that an earlier release issued under a subject's name."""
    with engine.reading(store.engine) as connection:
        now = engine.database_time(connection)
        found = access_rows.token_rows(connection)
    return [each.token_id for each in found if is_subject(each.name) and _is_valid(each, now)]


def revoke(store: Store, token_id: str, *, actor: str | None = None) -> AccessToken:
    """Revoke a token, from now on and for ever; raises NotFound."""
    with engine.writing(store.engine) as connection:
        if access_rows.token_row(connection, token_id) is None:
            raise NotFound(f"no token {token_id!r}")
        access_rows.mark_revoked(connection, token_id, engine.database_time(connection))
        stored = access_rows.token_row(connection, token_id)
    if stored is None:
        raise NotFound(f"no token {token_id!r}")
    security_log.record(
        SecurityEvent.TOKEN_REVOKED, token_id=stored.token_id, name=stored.name, role=stored.role, actor=actor
    )
    return _public(stored)


def _checked_scope(cohorts: Iterable[str]) -> list[str]:
    scope = sorted({checked_text("cohorts", cohort) for cohort in cohorts})
    if not 1 <= len(scope) <= SCOPE_MAX:
        raise InvalidValue(field="cohorts", value=scope, expected=f"1 to {SCOPE_MAX} names of cohorts")
    return scope


def _stored_now(store: Store, token_id: str) -> tuple[StoredToken, datetime] | None:
    with engine.reading_once(store.engine) as connection:
        return access_rows.token_now(connection, token_id)


def _is_valid(stored: StoredToken, now: datetime) -> bool:
    return stored.revoked_at is None and stored.expires_at > now


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("ascii")).digest()


def _public(stored: StoredToken) -> AccessToken:
    return AccessToken(
        token_id=stored.token_id,
        name=stored.name,
        role=Role(stored.role),
        cohorts=None if stored.cohorts is None else tuple(canonical.decode(stored.cohorts)),
        created_by=stored.created_by,
        created_at=stored.created_at,
        expires_at=stored.expires_at,
        revoked_at=stored.revoked_at,
        team=stored.team,
    )
