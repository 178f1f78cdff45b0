"""The issuer of OpenID Connect: its published keys, and the check of its tokens.

The extra `oidc` brings the libraries; only a server whose settings name an issuer imports this module.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey, import_key

from shuffle_ledger.ledger.access import AccessToken
from shuffle_ledger.ledger.api.auth.oidc_settings import (
    BadToken,
    OidcSettings,
    access_of,
    actor_of,
)
from shuffle_ledger.ledger.errors import IssuerUnavailable
from shuffle_ledger.ledger.values.web_addresses import is_safe_url

import httpx  # isort: skip  # the extra `client` has it, too: a missing joserfc must be named first

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
LEEWAY_SECONDS = 30  # between the issuer's clock and this server's
TIMEOUT_SECONDS = 5.0  # for one answer of the issuer, as a whole
ANSWER_BYTES_MAX = 1 << 20
TOKEN_LENGTH_MAX = 1 << 14
KEYS_MAX = 100
RSA_BITS_MIN = 2048
KEYS_FRESH_SECONDS = 600.0  # after that, keys are fetched again before they are used
KEYS_USED_SECONDS_MAX = 3600.0  # without an answer of the issuer; then its tokens are not accepted
FETCH_SECONDS_MIN = 30.0  # between two fetches: unknown keys of strangers cause no more than that
_TYPES = frozenset({"", "jwt", "at+jwt", "application/at+jwt"})
_WELL_KNOWN = "/.well-known/openid-configuration"

_log = logging.getLogger(__name__)


# The keys that the issuer published at one time, by name.
_Published = Mapping[str | None, tuple[Key, ...]]


class OpenIdConnect:
    """The settings with their issuer: whose access a token gives."""

    def __init__(self, settings: OidcSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes seconds that never go back, for the age of the issuer's keys."""
        self.settings = settings
        self.issuer = Issuer(settings.issuer, clock=clock)

    async def bearer(self, token: str) -> AccessToken:
        """Returns the access of a token of the issuer; raises BadToken, IssuerUnavailable."""
        claims = await self.issuer.claims(token, audience=self.settings.audience)
        actor, grant = actor_of(claims.get("sub")), self.settings.granting(claims)
        if actor is None:
            raise BadToken("it has no subject")
        if grant is None:
            raise BadToken(f"claim {self.settings.roles_claim} allows nothing to {actor}")
        return access_of(actor, grant, expires_at=float(claims["exp"]))


class Issuer:
    """One issuer. Used by one event loop."""

    def __init__(self, address: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._clock = clock
        self._published: _Published | None = None
        self._published_at = 0.0
        self._asked_at: float | None = None
        self._fetching = asyncio.Lock()

    async def claims(self, token: str, *, audience: str) -> dict[str, Any]:
        """Returns the claims of a token.

        Guarantee: the issuer signed it with a published key and an asymmetric algorithm, for this audience,
        and it is valid now, up to `LEEWAY_SECONDS`.

        Raises:
            BadToken: it is not such a token.
            IssuerUnavailable: the keys are not known.
        """
        claims = await self._signed(token)
        expected = jwt.JWTClaimsRegistry(
            now=int(time.time()),
            leeway=LEEWAY_SECONDS,
            iss={"essential": True, "value": self._address},
            aud={"essential": True, "value": audience},
            sub={"essential": True},
            exp={"essential": True},
        )
        try:
            expected.validate(claims)
            times = [float(claims[name]) for name in ("exp", "nbf", "iat") if name in claims]
        except (JoseError, ValueError, TypeError, OverflowError) as error:
            raise BadToken(f"its claims: {error}") from error
        if not all(map(math.isfinite, times)):  # NaN is neither before nor after now
            raise BadToken("its claims: a time that is not finite")
        return claims

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx.create_ssl_context()  # reads the authorities: 20 ms, once

    async def _ask(self, url: str) -> tuple[int, dict[str, Any]]:
        """Returns what `_answered` does; raises IssuerUnavailable."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await _answered(self._tls, url)
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            raise IssuerUnavailable(f"the issuer does not answer: {type(error).__name__}") from error

    async def _signed(self, token: str) -> dict[str, Any]:
        """Returns the claims of a token with a valid signature of the issuer."""
        if len(token) > TOKEN_LENGTH_MAX:
            raise BadToken("too long")
        try:
            header: Mapping[str, Any] = jws.extract_compact(token.encode("ascii")).headers()
            algorithm, named, kind = header.get("alg"), header.get("kid"), header.get("typ", "")
            if algorithm not in ALGORITHMS:
                raise BadToken(f"algorithm {algorithm!r:.40} is not accepted")
            if not isinstance(kind, str) or kind.lower() not in _TYPES:
                raise BadToken("its type is not accepted")
            key = await self._key(None if named is None else str(named), algorithm)
            return dict(jwt.decode(token, key, algorithms=[algorithm]).claims)
        except (JoseError, ValueError, TypeError, RecursionError) as error:
            raise BadToken(f"not signed by the issuer: {type(error).__name__}") from error

    async def _key(self, named: str | None, algorithm: str) -> Key:
        published = await self._now()
        found = _suitable(published, named, algorithm)
        if found is None:
            found = _suitable(await self._now(but=published), named, algorithm)
        if found is None:
            raise BadToken("signed with a key that the issuer does not publish")
        return found

    async def _now(self, *, but: _Published | None = None) -> _Published:
        """Returns what the issuer publishes, fetched again if it is old, or is `but`, at a limited pace."""
        known = self._published
        if known is not None and known is not but:
            age = self._clock() - self._published_at
            # While one request fetches, the others use what is known.
            if age <= KEYS_FRESH_SECONDS or (self._fetching.locked() and age <= KEYS_USED_SECONDS_MAX):
                return known
        async with self._fetching:
            now = self._clock()
            age = now - self._published_at
            due = self._published is None or self._published is but or age > KEYS_FRESH_SECONDS
            if due and (self._asked_at is None or now - self._asked_at >= FETCH_SECONDS_MIN):
                self._asked_at = now
                try:
                    self._published = await self._fetched()
                    self._published_at = now
                except IssuerUnavailable as error:
                    _log.warning("%s", error)
            if self._published is None or now - self._published_at > KEYS_USED_SECONDS_MAX:
                raise IssuerUnavailable("the issuer's keys are not known: it does not answer as it should")
            return self._published

    async def _fetched(self) -> _Published:
        status, found = await self._ask(self._address.rstrip("/") + _WELL_KNOWN)
        keys_at = found.get("jwks_uri")
        if status != 200 or found.get("issuer") != self._address:
            raise IssuerUnavailable(f"{self._address} does not publish itself as an issuer of that name")
        if not isinstance(keys_at, str) or not is_safe_url(keys_at):
            raise IssuerUnavailable("the issuer's jwks_uri is not an https:// address")
        status, listed = await self._ask(keys_at)
        keys = listed.get("keys")
        if status != 200 or not isinstance(keys, list) or len(keys) > KEYS_MAX:
            raise IssuerUnavailable("the issuer's keys cannot be read")
        return _keys_by_name(keys)


def _suitable(published: _Published, named: str | None, algorithm: str) -> Key | None:
    """Returns the key of a name that may make such a signature. Without a name: the only one there is."""
    keys = published.get(named, ()) if named is not None else sum(published.values(), ())
    fitting = [key for key in keys if key.get("alg") in (None, algorithm)]
    return fitting[0] if len(fitting) == 1 else None


def _keys_by_name(listed: list[Any]) -> dict[str | None, tuple[Key, ...]]:
    """Returns the public keys for signatures; others, and those that cannot be read, are left out."""
    found: dict[str | None, tuple[Key, ...]] = {}
    for each in listed:
        if not isinstance(each, dict) or each.get("use", "sig") != "sig" or each.get("kty") == "oct":
            continue
        try:
            key = import_key(each)
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        if isinstance(key, RSAKey) and key.public_key.key_size < RSA_BITS_MIN:
            continue
        if isinstance(key, RSAKey | ECKey | OKPKey):
            named = each.get("kid")
            name = named if isinstance(named, str) else None
            found[name] = (*found.get(name, ()), key)
    return found


async def _answered(tls: ssl.SSLContext, url: str) -> tuple[int, dict[str, Any]]:
    """Returns the status and the JSON object that the issuer answers; redirects are not followed."""
    body, status = bytearray(), 0
    options: dict[str, Any] = {"timeout": TIMEOUT_SECONDS, "follow_redirects": False, "verify": tls}
    try:
        async with (
            httpx.AsyncClient(**options) as client,
            client.stream("GET", url, headers={"Accept": "application/json"}) as answer,
        ):
            status = answer.status_code
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > ANSWER_BYTES_MAX:
                    raise IssuerUnavailable("the issuer's answer is too large")
        found = json.loads(body)
    except (ValueError, RecursionError):
        return status, {}
    return status, found if isinstance(found, dict) else {}
