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
import operator
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jwt

ALGORITHM = "EdDSA"
PERMIT, REVOKED, RECEIPT = "shuffle-permit+jwt", "shuffle-revoked+jwt", "shuffle-receipt+jwt"
LEEWAY_SECONDS = 60.0  # by which the clocks of the ledger and the gate may differ
LEEWAY_SECONDS_MAX = 3600.0  # a permit that expired is listed as revoked for longer
NUMBER_MAX = (1 << 53) - 1  # of counts and moments in tokens: what every reader of JSON keeps exactly
TOKEN_BYTES_MAX = 1 << 24  # the longest list of revoked permits has 9 million
_LAST_MOMENT = 253_402_300_799  # the last second that has a date
_STATE_BEGINS = b'{"ledger": '  # each line of a state file
_NOTHING = type(None)
Shape: TypeAlias = Sequence[
    tuple[tuple[type, ...], str]
]  # types, and the names whose values have one of them
_CLAIMS: Mapping[str, Shape] = {
    PERMIT: (
        ((str,), "iss ledger jti round_id randomizer counts admitted_at"),
        ((str, _NOTHING), "collected_on collected_until aud"),
        ((int,), "count_min nbf exp"),
        ((int, _NOTHING), "count_max"),
        ((list,), "cohorts"),
        ((dict,), "round"),
    ),
    REVOKED: (((str,), "ledger"), ((int,), "iat exp"), ((list,), "revoked")),
    RECEIPT: (
        ((str,), "iss ledger round_id event permit_sha256 permit"),
        ((int,), "count iat"),
        ((str, _NOTHING), "batch_sha256"),
    ),
}
# The fields of `Permit` whose claims JSON web tokens name otherwise.
_CALLED = {"issuer": "iss", "event": "jti", "not_before": "nbf", "expires_at": "exp", "releaser": "aud"}
_STATE: Shape = (
    ((str,), "ledger round_id"),
    ((int,), "count released_at"),
    ((str, _NOTHING), "batch_sha256 receipt"),
)


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
    """The words of a permit. `read_permit` has checked its signature, and nothing else."""

    token: str
    key: Mapping[str, str]  # which signed it, as a JSON web key
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
            leeway_seconds: by which the ledger's clock may differ from this one, up to an hour.
            clock: seconds since 1970.

        Raises:
            ValueError: keys that are no JWK set, a key that cannot sign or has no name beside it, or another
                leeway.
        """
        if not isinstance(dict(keys).get("keys"), list):
            raise ValueError("the ledger's keys are no JWK set, expected what `permit keys` gives")
        if not 0 <= leeway_seconds <= LEEWAY_SECONDS_MAX:
            raise ValueError(f"a leeway of {leeway_seconds} s, expected 0 to {LEEWAY_SECONDS_MAX:g} s")
        if signing_key is not None:
            if not releaser:
                raise ValueError(
                    "a gate that signs receipts needs a releaser's name, expected one beside its key"
                )
            try:
                sign({}, signing_key, kind=RECEIPT, key_id=releaser)
            except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as error:
                raise ValueError(
                    "the key that signs receipts cannot sign, expected a private Ed25519 key in PEM, not"
                    " encrypted"
                ) from error
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
        if count > (most := NUMBER_MAX if permit.count_max is None else permit.count_max):
            what = f"the batch has {count} {permit.counts}, expected at most {most}"
            sampled = ": more are a higher sampling rate than was admitted" if permit.count_max else ""
            raise GateRefused("too_many_reports", what + sampled)
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
            batch_sha256: digest of what is released, hexadecimal, for the receipt: after a crash it tells
                whether a batch that is still there is the one that was permitted.

        Raises:
            GateRefused: as `check`, or used_before, or state_unusable.
            TypeError, ValueError: `count` is no whole number, or `batch_sha256` no such digest.
        """
        count = operator.index(count)
        if batch_sha256 is not None and not is_sha256(batch_sha256):
            raise ValueError(f"batch_sha256 is {batch_sha256!r}, expected 64 hexadecimal digits")
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
        if claims["ledger"] != permit.ledger:
            raise GateRefused("other_ledger", f"the list of revoked permits is of ledger {claims['ledger']}")
        if claims["exp"] + self._leeway <= now:
            raise GateRefused(
                "stale_revocations",
                f"the list of revoked permits is of {_moment(claims['iat'])} and was good until"
                f" {_moment(claims['exp'])}: fetch it again",
            )
        _refuse_future(claims["iat"], now + self._leeway, "the list of revoked permits")
        if permit.event in claims["revoked"]:
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
            "jti": secrets.token_hex(16),  # two releases never have one receipt
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
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise GateRefused("state_unusable", f"{self._state} is no file, expected one on a disk")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            lines = _whole_lines(descriptor)
            os.fsync(descriptor)  # a process that ended may have written a line, and not waited for the disk
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
    claims, key = read_token(token, keys, kind=PERMIT)
    named: dict[str, Any] = {
        each.name: claims.get(_CALLED.get(each.name, each.name)) for each in fields(Permit)
    }
    named |= {"token": token.strip(), "key": key, "cohorts": tuple(claims["cohorts"])}
    return Permit(**named)


def read_token(token: str, keys: Mapping[str, Any], *, kind: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the claims of a signed token of a kind, and the public key that signed it; checks no times.

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
    named = [key for key in keys["keys"] if isinstance(key, Mapping) and key.get("kid") == key_id]
    known = [key for key in named if key_id is not None and key.get("kty") == "OKP"]
    if not known:
        raise GateRefused("wrong_key", f"the token names key {key_id!r}, which is none of the trusted keys")
    found, key = _decoded(token, known, kind)
    # The last character of a signature has bits that decoding ignores: two texts must not be one token.
    written = base64.urlsafe_b64encode(found["signature"]).rstrip(b"=").decode("ascii")
    if token.rpartition(".")[2] != written or found["header"].get("typ") != kind:
        raise GateRefused("altered", f"the token is a {found['header'].get('typ')}, expected a {kind}")
    claims: dict[str, Any] = found["payload"]
    if (name := _unfit(claims, _CLAIMS[kind])) is not None:
        raise GateRefused("altered", f"the {kind} has no {name} as it should be")
    return claims, {name: key[name] for name in ("kty", "crv", "x", "kid")}


def _decoded(
    token: str, known: Sequence[Mapping[str, Any]], kind: str
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return the parts of a token, and which of some keys signed it, all of one name: one may replace
    another."""
    unchecked: Any = {f"verify_{claim}": False for claim in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")}
    what = "its signature is not that of its content and its key"
    for each in known:
        try:
            key = jwt.PyJWK(dict(each), algorithm=ALGORITHM)
            return jwt.decode_complete(token, key, algorithms=[ALGORITHM], options=unchecked), each
        except jwt.InvalidSignatureError:
            continue
        except jwt.PyJWTError as error:
            what = f"it cannot be read ({error})"
    raise GateRefused("altered", f"the {kind} was altered: {what}")


def sign(claims: Mapping[str, Any], key: str | bytes, *, kind: str, key_id: str) -> str:
    """Return claims as a compact token of a kind, signed by a private Ed25519 key in PEM."""
    return jwt.encode(dict(claims), key, algorithm=ALGORITHM, headers={"typ": kind, "kid": key_id})


def is_sha256(text: str) -> bool:
    """Return whether a text is a digest by SHA-256, hexadecimal."""
    return re.fullmatch("[0-9a-f]{64}", text) is not None


def _unfit(content: Mapping[str, Any], shape: Shape) -> str | None:
    """Return the first name whose value is of another type, or a number that no count and no moment is."""
    for accepted, names in shape:
        for name in names.split():
            value = content.get(name)
            if type(value) not in accepted or (type(value) is int and not 0 <= value <= NUMBER_MAX):
                return name
    return None


def _refuse_future(moment: int, now: float, what: str) -> None:
    if moment > now:
        raise GateRefused(
            "not_yet_valid",
            f"{what} is valid from {_moment(moment)}, and this clock says less: set the clocks right",
        )


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(min(seconds, _LAST_MOMENT), UTC).isoformat()


def _call(text: str) -> str:
    """Return a randomizer that is written as a call in a form that does not depend on spaces, on the order of
    named parameters, and on 1 or 1.0."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                node.keywords.sort(key=lambda each: str(each.arg))
            elif isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value.is_integer():
                node.value = int(node.value)
        return ast.dump(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text.strip()  # equal only to itself


def _whole_lines(descriptor: int) -> list[bytes]:
    """Return the lines of the state file.

    A last line without an end is a write that never ended. If only its end is missing, it counts, for a
    release may have followed; else none did, and it is cut off. Text that no gate writes is never cut off.
    """
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        *lines, rest = file.read().split(b"\n")
    if rest.endswith(b"}"):
        os.write(descriptor, b"\n")
    elif _STATE_BEGINS.startswith(rest[: len(_STATE_BEGINS)]):
        os.ftruncate(descriptor, sum(len(line) + 1 for line in lines))
        return lines
    return [*lines, rest]


def _releases(lines: list[bytes], path: Path) -> dict[tuple[str, str], Release]:
    found = {}
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
            if _unfit(content, _STATE) is not None:
                raise ValueError(line)
            ledger = content.pop("ledger")
            release = Release(**content)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
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
