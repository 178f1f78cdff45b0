"""The gate of a shuffler: a batch of reports leaves only with a permit that the ledger signed.

    gate = Gate(keys, state=Path("gate-state.jsonl"), releaser="acme", signing_key=pem)
    release = gate.release(permit, count=len(batch), randomizer="krr(k=10, epsilon0=1)")   # or raises
    publish(batch), keep(release.receipt)

The gate needs no network and no ledger: this one file, PyJWT and cryptography. Permits, lists of revoked
permits and receipts are compact JSON web signatures (RFC 7515, EdDSA of RFC 8037); keys are JSON web keys
(RFC 7517).
`docs/permits.md` says what they contain, and `docs/permit-threats.md` what they do not prove.
"""

from __future__ import annotations

import ast
import base64
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import jwt

ALGORITHM = "EdDSA"
PERMIT, REVOKED, RECEIPT = "shuffle-permit+jwt", "shuffle-revoked+jwt", "shuffle-receipt+jwt"
LEEWAY_SECONDS = (
    60.0  # by which the clocks of the ledger and the gate may differ; larger accepts later permits
)
TOKEN_BYTES_MAX = 1 << 20


# The exit code of each reason to refuse; of several reasons, the first one is given.
CODES: Mapping[str, int] = {
    "altered": 10,  # changed, incomplete, or signed by another key than it names
    "wrong_key": 11,  # it names a key that is none of the trusted ones
    "other_ledger": 12,
    "other_releaser": 13,  # it is for another gate
    "expired": 14,
    "not_yet_valid": 15,  # it is from the future: a clock is wrong
    "stale_revocations": 16,  # the list of revoked permits is too old
    "revoked": 17,  # the round was closed since, or its cohort is overspent or frozen
    "too_few_reports": 18,
    "too_many_reports": 19,  # a higher sampling rate than was admitted
    "other_randomizer": 20,
    "used_before": 21,  # this gate has released the round
    "state_unusable": 22,  # what this gate has released is unknown
}


class GateRefused(Exception):
    """The batch must not be released.

    Attributes:
        kind: one of `CODES`.
        code: the exit code of the command.
        receipt: of the earlier release of a round that was used before, if it was signed.
    """

    def __init__(self, kind: str, message: str, *, receipt: str | None = None) -> None:
        """Take the reason and a sentence."""
        super().__init__(message)
        self.kind, self.code, self.receipt = kind, CODES[kind], receipt


@dataclass(frozen=True, kw_only=True)
class Permit:
    """What a permit says. `read_permit` has checked its signature, and nothing else."""

    token: str
    key_id: str
    issuer: str
    ledger: str
    event: str  # digest of the event that admitted the round, hexadecimal; also the permit's identifier
    round_id: str
    cohorts: tuple[str, ...]
    randomizer: str  # as a call
    round: Mapping[str, Any]  # the whole declared round, sample and analysis included
    count_min: int
    count_max: int | None  # None: more reports cost nothing
    counts: Literal["reports", "users"]  # what a count counts: users where each takes part by a coin
    collected_on: str | None
    collected_until: str | None
    admitted_at: str  # by the ledger's clock, ISO 8601
    not_before: int  # seconds since 1970
    expires_at: int
    releaser: str | None  # None: for any gate

    @property
    def digest(self) -> str:
        """SHA-256 of the token, hexadecimal."""
        return hashlib.sha256(self.token.encode("ascii")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release that a gate let through."""

    round_id: str
    count: int
    released_at: int  # seconds since 1970, by the gate's clock
    batch_sha256: str | None
    receipt: str | None  # None: the gate has no key to sign with


class Gate:
    """Lets each admitted round leave once."""

    def __init__(
        self,
        keys: Mapping[str, Any],
        *,
        state: Path,
        ledger: str | None = None,
        releaser: str | None = None,
        signing_key: str | bytes | None = None,
        leeway_seconds: float = LEEWAY_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take the trusted keys and the file of used permits.

        Args:
            keys: the ledger's JWK set, as `permit keys` and `/.well-known/jwks.json` give it.
            state: this gate's own file of used permits, on a disk that survives a crash. Two gates for one
                shuffler share it.
            ledger: the identifier of the one accepted ledger. None: that which `keys` names.
            releaser: this gate's name; permits for other releasers are refused.
            signing_key: a private Ed25519 key in PEM, which signs receipts; needs a name.
            leeway_seconds: by which the ledger's clock may differ from this one.
            clock: seconds since 1970.

        Raises:
            ValueError: a key to sign with and no name.
        """
        if signing_key is not None and not releaser:
            raise ValueError(
                "a gate that signs receipts needs a releaser's name, expected one beside its key"
            )
        named = keys.get("ledger")
        self._keys, self._state = keys, state
        self._ledger = ledger or (named if isinstance(named, str) else None)
        self._releaser, self._signing_key = releaser, signing_key
        self._leeway, self._clock = leeway_seconds, clock

    def check(
        self, token: str, *, count: int, randomizer: str | None = None, revoked: str | None = None
    ) -> Permit:
        """Return the permit if it permits a release of `count` reports now; uses nothing up.

        Args:
            token: the permit.
            count: reports in the batch, counted as at registration: before the honest fraction is taken; of
                a round with participation the users that were asked.
            randomizer: what the devices ran, as a call. None: not checked.
            revoked: the ledger's signed list of revoked permits. None: not checked.

        Raises:
            GateRefused: with the first reason that applies, in the order of `CODES`.
        """
        permit, now = read_permit(token, self._keys), self._clock()
        if self._ledger is not None and permit.ledger != self._ledger:
            raise GateRefused(
                "other_ledger", f"the permit is of ledger {permit.ledger}, expected {self._ledger}"
            )
        if permit.releaser is not None and permit.releaser != self._releaser:
            mine = self._releaser or "none (this gate has no name)"
            raise GateRefused(
                "other_releaser", f"the permit is for releaser {permit.releaser!r}, expected {mine}"
            )
        if permit.expires_at + self._leeway <= now:
            raise GateRefused(
                "expired", f"the permit of round {permit.round_id!r} expired at {_moment(permit.expires_at)}"
            )
        _refuse_future(permit.not_before, now + self._leeway, "the permit")
        if revoked is not None:
            self._refuse_revoked(permit, revoked, now)
        if not permit.count_min <= count:
            raise GateRefused(
                "too_few_reports",
                f"the batch has {count} {permit.counts}, expected at least {permit.count_min}: void the"
                " round, and register the smaller one under another name",
            )
        if permit.count_max is not None and count > permit.count_max:
            raise GateRefused(
                "too_many_reports",
                f"the batch has {count} {permit.counts}, expected at most {permit.count_max}: more are a"
                " higher sampling rate than was admitted",
            )
        if randomizer is not None and _call(randomizer) != _call(permit.randomizer):
            raise GateRefused(
                "other_randomizer", f"the reports were made by {randomizer}, expected {permit.randomizer}"
            )
        return permit

    def release(
        self,
        token: str,
        *,
        count: int,
        randomizer: str | None = None,
        revoked: str | None = None,
        batch_sha256: str | None = None,
    ) -> Release:
        """Check as `check`, use the permit up, and return the receipt. Release the batch afterwards.

        **Guarantee**: the use is on the disk before this returns, so that no second call for the same round
        of the same ledger succeeds with the same state file, after any crash, by any permit.

        Args:
            token: the permit; the other arguments as for `check`.
            count: see `check`.
            randomizer: see `check`.
            revoked: see `check`.
            batch_sha256: digest of what is released, for the receipt: after a crash it tells whether a batch
                that is still there is the one that was permitted.

        Raises:
            GateRefused: as `check`, or used_before, or state_unusable.
        """
        permit = self.check(token, count=count, randomizer=randomizer, revoked=revoked)
        with self._used() as (used, append):
            before = used.get((permit.ledger, permit.round_id))
            if before is not None:
                raise GateRefused(
                    "used_before",
                    f"round {permit.round_id!r} was released at {_moment(before.released_at)} with"
                    f" {before.count} {permit.counts}, expected no second release",
                    receipt=before.receipt,
                )
            said: dict[str, Any] = {
                "count": count,
                "batch_sha256": batch_sha256,
                "released_at": int(self._clock()),
            }
            receipt = self._receipt(permit, said, randomizer, revoked)
            release = Release(round_id=permit.round_id, receipt=receipt, **said)
            append({"ledger": permit.ledger, **vars(release)})
        return release

    def released(self, token: str) -> Release | None:
        """Return the release of a permit's round that this gate let through; None if there is none."""
        permit = read_permit(token, self._keys)
        with self._used() as (used, _):
            return used.get((permit.ledger, permit.round_id))

    def _refuse_revoked(self, permit: Permit, revoked: str, now: float) -> None:
        claims, _ = read_token(revoked, self._keys, kind=REVOKED)
        if claims.get("ledger") != permit.ledger:
            raise GateRefused(
                "other_ledger", f"the list of revoked permits is of ledger {claims.get('ledger')}"
            )
        if not _whole(claims, "exp") + self._leeway > now:
            raise GateRefused(
                "stale_revocations",
                f"the list of revoked permits is of {_moment(claims['iat'])} and was good until"
                f" {_moment(claims['exp'])}: fetch it again",
            )
        _refuse_future(_whole(claims, "iat"), now + self._leeway, "the list of revoked permits")
        if permit.event in claims.get("revoked", ()):
            raise GateRefused(
                "revoked",
                f"the ledger revoked the permit of round {permit.round_id!r}: it must not be released",
            )

    def _receipt(
        self, permit: Permit, said: Mapping[str, Any], randomizer: str | None, revoked: str | None
    ) -> str | None:
        if self._signing_key is None:
            return None
        listed = None if revoked is None else read_token(revoked, self._keys, kind=REVOKED)[0]
        claims = {
            "iss": self._releaser,
            "iat": said["released_at"],
            "ledger": permit.ledger,
            "round_id": permit.round_id,
            "event": permit.event,
            "count": said["count"],
            "batch_sha256": said["batch_sha256"],
            "randomizer": randomizer,
            "revocations_of": None if listed is None else listed["iat"],
            "permit_sha256": permit.digest,
            "permit": permit.token,
        }
        return sign(claims, self._signing_key, kind=RECEIPT, key_id=str(self._releaser))

    @contextmanager
    def _used(
        self,
    ) -> Iterator[tuple[dict[tuple[str, str], Release], Callable[[Mapping[str, Any]], None]]]:
        """Yield what was released, and a function that adds a release durably; others wait meanwhile."""
        try:
            descriptor = os.open(self._state, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise GateRefused(
                "state_unusable", f"{self._state} cannot be opened: {error.strerror}"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            lines = _whole_lines(descriptor)
            if not lines:  # the file may be new: its name must survive a crash as well
                _sync_folder(self._state.parent)
            used = _releases(lines, self._state)

            def append(line: Mapping[str, Any]) -> None:
                data = json.dumps(line).encode("utf-8") + b"\n"
                if os.write(descriptor, data) != len(data):
                    raise OSError(0, "the disk is full")
                os.fsync(descriptor)

            yield used, append
        except OSError as error:
            raise GateRefused(
                "state_unusable", f"{self._state} cannot be written: {error.strerror}"
            ) from error
        finally:
            os.close(descriptor)


def read_permit(token: str, keys: Mapping[str, Any]) -> Permit:
    """Return the contents of a permit whose signature holds, whatever its time.

    Raises:
        GateRefused: altered or wrong_key.
    """
    claims, key_id = read_token(token, keys, kind=PERMIT)
    try:
        return Permit(
            token=token.strip(),
            key_id=key_id,
            issuer=str(claims["iss"]),
            ledger=str(claims["ledger"]),
            event=str(claims["jti"]),
            round_id=str(claims["round_id"]),
            cohorts=tuple(claims["cohorts"]),
            randomizer=str(claims["randomizer"]),
            round=claims["round"],
            count_min=_whole(claims, "count_min"),
            count_max=None if claims["count_max"] is None else _whole(claims, "count_max"),
            counts=claims["counts"],
            collected_on=claims["collected_on"],
            collected_until=claims["collected_until"],
            admitted_at=str(claims["admitted_at"]),
            not_before=_whole(claims, "nbf"),
            expires_at=_whole(claims, "exp"),
            releaser=claims.get("aud"),
        )
    except KeyError as error:
        raise GateRefused("altered", f"the permit lacks {error.args[0]!r}") from error


def read_token(token: str, keys: Mapping[str, Any], *, kind: str) -> tuple[dict[str, Any], str]:
    """Return the claims of a signed token of a kind and the identifier of its key; checks no times.

    Raises:
        GateRefused: altered, or wrong_key if `keys`, a JWK set, lacks the key that the token names.
    """
    token = token.strip()
    if len(token) > TOKEN_BYTES_MAX or not token.isascii():
        raise GateRefused(
            "altered", f"it is no {kind}: expected one line of at most {TOKEN_BYTES_MAX} ASCII characters"
        )
    try:
        key_id = jwt.get_unverified_header(token).get("kid")
    except jwt.PyJWTError as error:
        raise GateRefused("altered", f"the {kind} was altered: it cannot be read ({error})") from error
    known = [key for key in keys.get("keys", ()) if key.get("kid") == key_id and key.get("kty") == "OKP"]
    if not known:
        raise GateRefused("wrong_key", f"the token names key {key_id!r}, which is none of the trusted keys")
    found = _decoded(token, known, kind)
    # The last character of a signature has bits that decoding ignores: two texts must not be one token.
    written = base64.urlsafe_b64encode(found["signature"]).rstrip(b"=").decode("ascii")
    if token.rpartition(".")[2] != written or found["header"].get("typ") != kind:
        raise GateRefused("altered", f"the token is a {found['header'].get('typ')}, expected a {kind}")
    claims: dict[str, Any] = found["payload"]
    return claims, str(key_id)


def _decoded(token: str, known: Sequence[Mapping[str, Any]], kind: str) -> dict[str, Any]:
    """Return the parts of a token that one of some keys signed, all of one name: one may replace another."""
    unchecked: Any = {f"verify_{claim}": False for claim in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")}
    what = "its signature is not that of its content and its key"
    for each in known:
        try:
            key = jwt.PyJWK(dict(each), algorithm=ALGORITHM)
            return jwt.decode_complete(token, key, algorithms=[ALGORITHM], options=unchecked)
        except jwt.InvalidSignatureError:
            continue
        except jwt.PyJWTError as error:
            what = f"it cannot be read ({error})"
    raise GateRefused("altered", f"the {kind} was altered: {what}")


def sign(claims: Mapping[str, Any], key: str | bytes, *, kind: str, key_id: str) -> str:
    """Return claims as a compact token of a kind, signed by a private Ed25519 key in PEM."""
    return jwt.encode(dict(claims), key, algorithm=ALGORITHM, headers={"typ": kind, "kid": key_id})


def _whole(claims: Mapping[str, Any], name: str) -> int:
    if type(claims[name]) is not int:
        raise GateRefused("altered", f"{name} is {claims[name]!r}, expected a whole number")
    return int(claims[name])


def _refuse_future(moment: int, now: float, what: str) -> None:
    if moment > now:
        raise GateRefused(
            "not_yet_valid",
            f"{what} is valid from {_moment(moment)}, and this clock says less: set the clocks right",
        )


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _call(text: str) -> object:
    """Return a randomizer that is written as a call in a form that does not depend on spaces and order."""
    try:
        return _part(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return text.strip()  # equal only to itself


def _part(node: ast.expr) -> object:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named = sorted((str(each.arg), _part(each.value)) for each in node.keywords)
        return (node.func.id, [_part(each) for each in node.args], named)
    if isinstance(node, ast.Tuple | ast.List):
        return [_part(each) for each in node.elts]
    return ast.literal_eval(node)


def _whole_lines(descriptor: int) -> list[bytes]:
    """Return the lines of the state file. A last line without an end is a write that never ended, so that no
    release followed it: it is cut off."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        *lines, rest = file.read().split(b"\n")
    if rest:
        os.ftruncate(descriptor, sum(len(line) + 1 for line in lines))
    return lines


def _releases(lines: list[bytes], path: Path) -> dict[tuple[str, str], Release]:
    found = {}
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
            ledger = content.pop("ledger")
            release = Release(**content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise GateRefused(
                "state_unusable", f"{path}, line {number} is damaged, expected a release"
            ) from error
        found[ledger, release.round_id] = release
    return found


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
