"""Permits: the ledger's signed word that a round is admitted, for the gate that releases its reports.

`shuffle_ledger.gate` checks them, and `docs/permits.md` shows them.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, TypeAlias

from shuffle_ledger import gate
from shuffle_ledger.ledger.decisions.outcomes import present_answer
from shuffle_ledger.ledger.errors import Conflict, InvalidValue, LedgerError
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import permits as rows
from shuffle_ledger.ledger.storage.permits import StoredPermit
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Admitted, RoundRequest, checked_new_name
from shuffle_ledger.ledger.values.signing import SigningKey, read_public_key

REVOKED_SECONDS = 3600  # how long a list of revoked permits is good: a gate may learn that late of a void
KEYS_BYTES_MAX = 1 << 20

Jwks: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PermitKeys:
    """The keys around permits: which one signs, which are published, and whose receipts count."""

    signing_key: bytes | None  # PEM; None: this ledger signs no permits
    key_id: str | None
    published: (
        Jwks  # of permits, retired keys included; `signing` names the key in use, None if there is none
    )
    releasers: Jwks
    issuer: str
    ledger: str
    lifetime: timedelta  # of a permit, from the end of the collection

    @classmethod
    def of(cls, settings: Settings, ledger_id: str) -> PermitKeys:
        """Return the keys that the settings name.

        Raises:
            InvalidValue: a file holds no such key, or permits would be signed by the key of checkpoints.
        """
        pem, keys = None, []
        if settings.permit_key is not None:
            public = SigningKey.load(settings.permit_key).public_key_bytes
            pem, keys = settings.permit_key.read_bytes(), [jwk(public)]
            if settings.signing_key and SigningKey.load(settings.signing_key).public_key_bytes == public:
                expected = "another key than that of checkpoints: make one with `permit keygen`"
                raise InvalidValue(field="permit_key", value=str(settings.permit_key), expected=expected)
        key_id = keys[0]["kid"] if keys else None
        keys += [jwk(read_public_key(str(path))) for path in settings.permit_keys_retired]
        issuer = settings.permit_issuer or f"urn:shuffle-ledger:{ledger_id}"
        return cls(
            signing_key=pem,
            key_id=key_id,
            published={"ledger": ledger_id, "issuer": issuer, "keys": keys, "signing": key_id},
            releasers={"keys": _releasers(settings.releaser_keys) if settings.releaser_keys else []},
            issuer=issuer,
            ledger=ledger_id,
            lifetime=timedelta(days=settings.permit_days),
        )

    def sign(self, claims: Mapping[str, Any], kind: str) -> str:
        """Return claims as a token of this ledger; raises Conflict where it has no key for that."""
        key, key_id = self.require_signing()
        named = {"iss": self.issuer, "ledger": self.ledger, **claims}
        return gate.sign(named, key, kind=kind, key_id=key_id)

    def require_signing(self) -> tuple[bytes, str]:
        """Return the key that signs, in PEM, and its identifier; raises Conflict if there is none."""
        if self.signing_key is None or self.key_id is None:
            raise Conflict("this ledger signs no permits: SHUFFLE_LEDGER_PERMIT_KEY names no key")
        return self.signing_key, self.key_id


@dataclass(frozen=True, kw_only=True)
class IssuedPermit:
    """A permit of an admitted round: the releaser shows it to the gate."""

    round_id: str
    permit: str  # the token
    event: str  # digest of the entry that admitted the round, hexadecimal
    releaser: str | None
    expires_at: datetime


def jwk(public_key: bytes, name: str | None = None) -> dict[str, str]:
    """Return a public Ed25519 key as a JSON web key. Without a name it has its thumbprint's (RFC 7638)."""
    members = {"crv": "Ed25519", "kty": "OKP", "x": _base64(public_key)}
    thumbprint = hashlib.sha256(json.dumps(members, separators=(",", ":")).encode("ascii")).digest()
    return {**members, "kid": name or _base64(thumbprint), "alg": gate.ALGORITHM, "use": "sig"}


def read_jwks(path: Path) -> Jwks:
    """Return the JWK set in a file; raises InvalidValue."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(KEYS_BYTES_MAX))
        if not isinstance(found["keys"], list) or not all(isinstance(key, dict) for key in found["keys"]):
            raise ValueError("keys is no list of keys")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidValue(field="keys", value=str(path), expected="a file with a JWK set") from error
    return dict(found)


def issue_permit(
    store: Store, keys: PermitKeys, round_id: str, *, actor: str, releaser: str | None = None
) -> IssuedPermit:
    """Return the permit of an admitted round. Asked again, it is the same, signed anew if the key changed.

    Args:
        store: the ledger.
        keys: those of its settings.
        round_id: the round.
        actor: who asks.
        releaser: the only gate that may use it. None: any gate that trusts this ledger.

    **Guarantee**: a round has one permit, with one identifier: the digest of the event that admitted it. A
    round that permitted no release when it was read gets none; `revoked_permits` lists one that ended since.

    Raises:
        NotFound: no such round.
        NotCollectable: the round is closed, or a cohort of it is frozen or overspent.
        Conflict: the round is not admitted; its permit expired, or is for another releaser; no key signs.
    """
    store.check_anchor()
    stored = store.round(round_id)
    answer = present_answer(store, stored)
    if not isinstance(answer, Admitted):
        state = "refused" if stored.outcome_sequence else "pending"
        raise Conflict(f"round {round_id!r} is {state}: only an admitted round gets a permit")
    entry, request = store.entry(answer.cohort, answer.sequence), RoundRequest.from_bytes(stored.content)
    admitted_at, now = entry.content().recorded_at, store.now()
    first, last = request.days or (admitted_at.date(), admitted_at.date())
    begins = max(admitted_at, datetime.combine(first, time(), UTC))  # reports of later days are not there yet
    after = min(last, date.max - timedelta(days=1)) + timedelta(days=1)
    ends = max(begins, datetime.combine(after, time(), UTC))
    ends += min(keys.lifetime, datetime.max.replace(tzinfo=UTC) - ends)
    releaser = checked_new_name("releaser", releaser) if releaser is not None else None

    def signed(expires_at: datetime) -> str:
        claims = _claims(request, entry.digest.hex(), begins, expires_at)
        claims["admitted_at"] = admitted_at.isoformat()
        return keys.sign(claims if releaser is None else {**claims, "aud": releaser}, gate.PERMIT)

    made = StoredPermit(
        round_id=round_id,
        event=entry.digest.hex(),
        token=signed(ends),
        releaser=releaser,
        issued_by=actor,
        issued_at=now,
        expires_at=ends,
    )
    kept = rows.permits_of(store.engine, [round_id]).get(round_id, made)
    if kept.expires_at <= now:
        raise Conflict(f"round {round_id!r}: its permit expired at {kept.expires_at.isoformat()}; void it")
    kept = rows.keep_permit(store.engine, made)
    if kept.releaser != releaser:
        raise Conflict(
            f"round {round_id!r} has a permit for {kept.releaser or 'any releaser'}, expected that"
        )
    token = signed(kept.expires_at)
    if token != kept.token:
        rows.sign_again(store.engine, round_id, token)
    return IssuedPermit(
        round_id=round_id, permit=token, event=kept.event, releaser=releaser, expires_at=kept.expires_at
    )


def revoked_permits(store: Store, keys: PermitKeys) -> str:
    """Return the signed list of permits that count no more: of closed rounds, and of cohorts that are frozen
    or overspent. It is good for `REVOKED_SECONDS`.

    Raises:
        Conflict: no key signs.
        BehindCheckpoint: the ledger was put back to an earlier state.
        LedgerError: more than `REVOKED_MAX` permits are revoked.
    """
    keys.require_signing()  # before the database is asked, for anyone may ask
    store.check_anchor()  # a ledger that was put back lacks what was voided since
    now, events = rows.revoked_events(store.engine)
    if len(events) > rows.REVOKED_MAX:
        raise LedgerError(f"more than {rows.REVOKED_MAX} permits are revoked: shorten the days of permits")
    moment = int(now.timestamp())
    return keys.sign({"iat": moment, "exp": moment + REVOKED_SECONDS, "revoked": events}, gate.REVOKED)


def _claims(request: RoundRequest, event: str, begins: datetime, ends: datetime) -> dict[str, Any]:
    """Return the contents of a permit."""
    described = request.round
    return {
        "jti": event,
        "nbf": int(begins.timestamp()),
        "exp": int(ends.timestamp()),
        "round_id": request.round_id,
        "cohorts": list(request.members),
        "randomizer": described.randomizer.describe(),
        "round": described.to_mapping(),
        "count_min": described.reports,
        "count_max": described.reports if described.sampled_from is not None else None,
        "counts": "reports" if described.participation is None else "users",
        "collected_on": request.collected_on and request.collected_on.isoformat(),
        "collected_until": request.collected_until and request.collected_until.isoformat(),
    }


def _releasers(path: Path) -> list[dict[str, Any]]:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return [key for file in files for key in read_jwks(file)["keys"]]


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
