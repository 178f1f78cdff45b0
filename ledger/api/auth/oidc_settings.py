"""The settings of OpenID Connect, checked as a whole when a server starts.

A claim of the issuer's tokens says which roles a subject has: `Grant`s, in the order of the setting.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from shuffle_ledger.ledger.access import SCOPE_MAX, SUBJECT_PREFIX, SUBJECT_PREFIX_HASHED, AccessToken
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.roles import Role
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.values.quotas import checked_team
from shuffle_ledger.ledger.values.texts import NAME_LENGTH_MAX, checked_text
from shuffle_ledger.ledger.values.web_addresses import is_safe_url

_LIFETIME_SECONDS_MAX = 366 * 86_400.0
_PREFIX = "SHUFFLE_LEDGER_"
_FIELDS_OF_GRANT = frozenset({"role", "cohorts", "team"})
# A subject of these characters is legible in entries: no blanks, nothing that two texts could share.
_LEGIBLE = re.compile(r"[!-~]+", re.ASCII)


class BadToken(Exception):
    """A token that is not accepted; the sentence is for the security log, not for its bearer."""


@dataclass(frozen=True, kw_only=True)
class Grant:
    """The rights that a value of the roles' claim gives: the options of `token create`."""

    role: Role
    cohorts: tuple[str, ...] | None = None  # None: every cohort
    team: str | None = None


@dataclass(frozen=True, kw_only=True)
class OidcSettings:
    """Whose tokens are accepted, and what they allow."""

    issuer: str
    audience: str  # that its tokens must be for
    roles_claim: str
    grants: Mapping[str, Grant]  # by value of the claim; the first one that a subject has counts

    @classmethod
    def of(cls, settings: Settings) -> OidcSettings | None:
        """Returns the settings, None without any of them.

        Raises:
            InvalidValue: one is missing or wrong, or one does not fit another.
        """
        given = {name for name in Settings.model_fields if name.startswith("oidc_")}
        if not any(getattr(settings, name) is not None for name in given):
            return None
        issuer = _required(settings.oidc_issuer, "oidc_issuer", "the issuer's address")
        if not is_safe_url(issuer):
            expected = "an https:// address (http:// on this machine only) without a user"
            raise _wrong("oidc_issuer", issuer, expected)
        return cls(
            issuer=issuer,
            audience=_required(settings.oidc_audience, "oidc_audience", "the audience of its tokens"),
            roles_claim=_required(settings.oidc_roles_claim, "oidc_roles_claim", "the claim with the roles"),
            grants=_checked_grants(settings.oidc_roles),
        )

    def granting(self, claims: Mapping[str, object]) -> Grant | None:
        """Returns the grant of the first name in `grants` that the roles' claim has.

        None, and then nothing is allowed: the claim is missing, of another type, or not mapped.
        """
        value = _claim(claims, self.roles_claim)
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
            return None
        return next((grant for name, grant in self.grants.items() if name in listed), None)


def access_of(actor: str, grant: Grant, *, expires_at: float) -> AccessToken:
    """Returns the access of a subject until `expires_at` (Unix time, seconds)."""
    now = datetime.now(UTC)
    lifetime = timedelta(seconds=min(max(0.0, expires_at - now.timestamp()), _LIFETIME_SECONDS_MAX))
    return AccessToken(
        token_id="oidc-" + hashlib.sha256(actor.encode("utf-8")).hexdigest()[:16],
        name=actor,
        role=grant.role,
        cohorts=grant.cohorts,
        created_by="OpenID Connect",
        created_at=now,
        expires_at=now + lifetime,
        revoked_at=None,
        team=grant.team,
    )


def actor_of(subject: object) -> str | None:
    """Returns the actor of a subject's entries; None for what is no subject.

    Guarantee: different subjects have different actors, and no token of the ledger has the name of one.
    A subject that is too long for a name, or not of printable ASCII without blanks, is shown as its digest.
    """
    if not isinstance(subject, str) or not subject:
        return None
    named = SUBJECT_PREFIX + subject
    if len(named) <= NAME_LENGTH_MAX and _LEGIBLE.fullmatch(subject):
        return named
    digest = hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()
    return SUBJECT_PREFIX_HASHED + digest


def _checked_grants(roles: Mapping[str, object] | None) -> Mapping[str, Grant]:
    if not roles:
        expected = 'a JSON object from values of the claim to roles, such as {"ledger-readers": "reader"}'
        raise _wrong("oidc_roles", None, expected)
    return {name: _checked_grant(value) for name, value in roles.items()}


def _checked_grant(value: object) -> Grant:
    fields = {"role": value} if isinstance(value, str) else value
    if not isinstance(fields, dict) or fields.get("role") not in set(Role) or set(fields) - _FIELDS_OF_GRANT:
        expected = 'a role, or {"role": …, "cohorts": […], "team": …}; roles are ' + ", ".join(Role)
        raise _wrong("oidc_roles", value, expected)
    cohorts, team = fields.get("cohorts"), fields.get("team")
    if cohorts is not None:
        if not isinstance(cohorts, list) or not 1 <= len(cohorts) <= SCOPE_MAX:
            raise _wrong("oidc_roles", cohorts, f"cohorts: a list of 1 to {SCOPE_MAX} names")
        cohorts = tuple(sorted({checked_text("cohorts", each) for each in cohorts}))
    return Grant(
        role=Role(fields["role"]), cohorts=cohorts, team=None if team is None else checked_team(team)
    )


def _claim(claims: Mapping[str, object], name: str) -> object:
    """Returns a claim by its name, or by a JSON pointer (RFC 6901) such as `/realm_access/roles`."""
    if not name.startswith("/"):
        return claims.get(name)
    found: object = claims
    for step in name[1:].split("/"):
        if not isinstance(found, Mapping):
            return None
        found = found.get(step.replace("~1", "/").replace("~0", "~"))
    return found


def _required(value: str | None, field: str, what: str) -> str:
    if value is None:
        raise _wrong(field, None, f"{what}, because other settings of OpenID Connect are given")
    return value


def _wrong(field: str, value: object, expected: str) -> InvalidValue:
    return InvalidValue(field=_PREFIX + field.upper(), value=value, expected=expected)
