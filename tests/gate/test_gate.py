"""The gate refuses whatever is no permit for this batch now, and lets each round leave once."""

from __future__ import annotations

import base64
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest

from shuffle_ledger import gate
from shuffle_ledger.gate import Gate, GateRefused
from shuffle_ledger.ledger.storage.permits import REVOKED_MAX
from tests.gate.conftest import LEDGER, Signer

RANDOMIZER = "krr(k=10, epsilon0=1)"


def gate_of(ledger: Signer, folder: Path, **more: Any) -> Gate:
    """Return a gate that trusts a ledger."""
    return Gate(more.pop("keys", ledger.keys), state=folder / "state.jsonl", **more)


def refused(ask: Callable[[], object]) -> str:
    """Return why a gate refuses."""
    with pytest.raises(GateRefused) as caught:
        ask()
    assert caught.value.code == gate.CODES[caught.value.kind]
    assert str(caught.value)
    return caught.value.kind


def test_a_permitted_batch_leaves_once(ledger: Signer, tmp_path: Path) -> None:
    own, door = ledger.permit(), gate_of(ledger, tmp_path)
    assert door.released(own) is None
    assert door.check(own, count=1000, randomizer=RANDOMIZER, revoked=ledger.revoked()).round_id == "w48"
    release = door.release(own, count=1200, randomizer=RANDOMIZER, revoked=ledger.revoked("f" * 64))
    assert (release.round_id, release.count, release.receipt) == ("w48", 1200, None)
    for again in (door, gate_of(ledger, tmp_path)):  # the same process, and another one later
        assert refused(lambda again=again: again.release(own, count=1200)) == "used_before"  # type: ignore[misc]
        assert again.released(own) == release


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"ledger": "b" * 32}, "other_ledger"),
        ({"aud": "somebody"}, "other_releaser"),
        ({"exp": int(time.time()) - 100}, "expired"),
        ({"nbf": int(time.time()) + 1_000_000}, "not_yet_valid"),
        ({"count_min": 1001}, "too_few_reports"),
        ({"count_max": 999, "count_min": 5}, "too_many_reports"),
        ({"randomizer": "krr(epsilon0=2, k=10)"}, "other_randomizer"),
        ({"randomizer": "joint(krr(epsilon0=1, k=10), krr(epsilon0=1, k=10))"}, "other_randomizer"),
        ({"kind": gate.RECEIPT}, "altered"),
        ({"kind": "JWT"}, "altered"),
        ({"key_id": "another"}, "wrong_key"),
        ({"exp": "tomorrow"}, "altered"),
        ({"count_min": None}, "altered"),
    ],
)
def test_what_is_no_permit_for_this_batch_is_refused(
    ledger: Signer, tmp_path: Path, changes: dict[str, Any], kind: str
) -> None:
    door = gate_of(ledger, tmp_path)
    assert refused(lambda: door.release(ledger.permit(**changes), count=1000, randomizer=RANDOMIZER)) == kind
    assert not (tmp_path / "state.jsonl").exists()  # nothing was used up


def test_forged_permits_are_refused(ledger: Signer, stranger: Signer, tmp_path: Path) -> None:
    door, own = gate_of(ledger, tmp_path), ledger.permit()
    # Another key, under its own name and under that of the ledger.
    assert refused(lambda: door.check(stranger.permit(), count=1000)) == "wrong_key"
    named = stranger.permit(key_id=ledger.jwk["kid"])
    assert refused(lambda: door.check(named, count=1000)) == "altered"
    # No signature, and a signature of a shared secret: the public key as one.
    header, payload, _ = own.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    named_header = {"typ": gate.PERMIT, "kid": ledger.jwk["kid"]}
    unsigned = jwt.encode(claims, "", algorithm="none", headers=named_header)
    shared = jwt.encode(claims, ledger.jwk["x"], algorithm="HS256", headers=named_header)
    for token in (
        unsigned,
        shared,
        "",
        "a.b.c",
        own[:-2],
        own + "AA",
        "é",
        "x" * (1 << 21),
        f"{header}.{payload}.",
    ):
        assert refused(lambda token=token: door.check(token, count=1000)) == "altered"  # type: ignore[misc]


def test_no_byte_of_a_permit_can_be_changed(ledger: Signer, tmp_path: Path) -> None:
    door, own = gate_of(ledger, tmp_path), ledger.permit()
    for place in [*range(0, len(own), 3), *range(len(own) - 3, len(own))]:
        other = "A" if own[place] != "A" else "B"
        changed = own[:place] + other + own[place + 1 :]
        kind = refused(lambda changed=changed: door.check(changed, count=1000))  # type: ignore[misc]
        assert kind in ("altered", "wrong_key")


def test_two_texts_are_never_one_token(ledger: Signer, tmp_path: Path) -> None:
    """The last four bits of a signature's last character mean nothing to a decoder."""
    door, own = gate_of(ledger, tmp_path), ledger.permit()
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for last in alphabet.replace(own[-1], ""):
        assert refused(lambda last=last: door.check(own[:-1] + last, count=1000)) == "altered"  # type: ignore[misc]
    assert refused(lambda: door.check(own + "==", count=1000)) == "altered"
    assert door.check(f" {own}\n", count=1000).token == own


def test_a_key_that_is_replaced_under_its_name_is_trusted_beside_the_new_one(
    ledger: Signer, stranger: Signer, tmp_path: Path
) -> None:
    named = {**stranger.jwk, "kid": ledger.jwk["kid"]}
    for keys in ([named, ledger.jwk], [ledger.jwk, named]):
        door = gate_of(ledger, tmp_path, keys={"ledger": LEDGER, "keys": keys})
        assert door.check(ledger.permit(), count=1000).round_id == "w48"
    door = gate_of(ledger, tmp_path, keys={"ledger": LEDGER, "keys": [named]})
    assert refused(lambda: door.check(ledger.permit(), count=1000)) == "altered"


def test_the_clocks_may_differ_by_the_leeway(ledger: Signer, tmp_path: Path) -> None:
    now = time.time()
    own = ledger.permit(nbf=int(now), exp=int(now) + 100)
    for clock, kind in ((-50, None), (-90, "not_yet_valid"), (150, None), (190, "expired")):
        door = gate_of(ledger, tmp_path, clock=lambda clock=clock: now + clock)
        if kind is None:
            assert door.check(own, count=1000).round_id
        else:
            assert refused(lambda door=door: door.check(own, count=1000)) == kind  # type: ignore[misc]
    behind = gate_of(ledger, tmp_path, clock=lambda: now - 1000)
    late = ledger.permit(nbf=int(now) - 5000)
    assert behind.check(
        late, count=1000
    ).round_id  # a clock that is behind is found by a list from its future
    assert refused(lambda: behind.check(late, count=1000, revoked=ledger.revoked())) == "not_yet_valid"


def test_revoked_permits_and_useless_lists_are_refused(
    ledger: Signer, stranger: Signer, tmp_path: Path
) -> None:
    door, own, now = gate_of(ledger, tmp_path), ledger.permit(), int(time.time())
    lists = {
        ledger.revoked("e" * 64): "revoked",
        ledger.revoked(iat=now - 9000, exp=now - 5400): "stale_revocations",
        ledger.revoked(ledger="b" * 32): "other_ledger",
        stranger.revoked(): "wrong_key",
        own: "altered",  # a permit is no list
        "": "altered",
    }
    for listed, kind in lists.items():
        assert refused(lambda listed=listed: door.check(own, count=1000, revoked=listed)) == kind  # type: ignore[misc]


def test_a_permit_of_another_signing_of_the_same_round_is_a_second_use(
    ledger: Signer, tmp_path: Path
) -> None:
    """A ledger that was put back admits and permits twice: this gate has released the round."""
    door = gate_of(ledger, tmp_path)
    door.release(ledger.permit(), count=1000)
    assert refused(lambda: door.release(ledger.permit(jti="f" * 64), count=1000)) == "used_before"
    assert door.release(ledger.permit(jti="f" * 64, round_id="w49"), count=1000).round_id == "w49"


def test_a_receipt_says_what_left_and_who_says_so(ledger: Signer, tmp_path: Path) -> None:
    mine = Signer(tmp_path / "acme.pem", "acme")
    door = gate_of(ledger, tmp_path, releaser="acme", signing_key=mine.pem)
    own = ledger.permit(aud="acme")
    release = door.release(
        own, count=1100, randomizer=RANDOMIZER, revoked=ledger.revoked(), batch_sha256="ab" * 32
    )
    claims, signer = gate.read_token(str(release.receipt), mine.keys, kind=gate.RECEIPT)
    assert signer["kid"] == claims["iss"] == "acme"
    assert (claims["count"], claims["batch_sha256"], claims["permit"]) == (1100, "ab" * 32, own)
    assert claims["permit_sha256"] == gate.read_permit(own, ledger.keys).digest
    assert claims["revocations_of"] is not None
    with pytest.raises(GateRefused) as again:
        door.release(own, count=1100)
    assert again.value.receipt == release.receipt
    with pytest.raises(ValueError, match="name"):
        Gate(ledger.keys, state=tmp_path / "s", signing_key=mine.pem)


def test_a_write_that_never_ended_is_no_release(ledger: Signer, tmp_path: Path) -> None:
    door, state = gate_of(ledger, tmp_path), tmp_path / "state.jsonl"
    door.release(ledger.permit(), count=1000)
    whole = state.read_bytes()
    for cut in (1, 10, 20, len(whole) - 2):
        state.write_bytes(whole + whole[:cut].replace(b"w48", b"w49"))
        assert refused(lambda: door.release(ledger.permit(), count=1000)) == "used_before"
        assert state.read_bytes() == whole
    # Only the end is missing: an editor may have cut it off behind a release.
    state.write_bytes(whole[:-1])
    assert refused(lambda: door.release(ledger.permit(), count=1000)) == "used_before"
    assert state.read_bytes() == whole
    missing = Gate(ledger.keys, state=tmp_path / "nowhere" / "state.jsonl")
    assert refused(lambda: missing.release(ledger.permit(), count=1000)) == "state_unusable"


WRONG: list[dict[str, Any]] = [
    *({"ledger": []}, {"round_id": None}, {"released_at": "x"}, {"released_at": 1e30}),
    *({"count": -1}, {"more": 1}),
]
LINE = {
    "ledger": LEDGER,
    "round_id": "w48",
    "count": 1,
    "released_at": 1,
    "batch_sha256": None,
    "receipt": None,
}


@pytest.mark.parametrize(
    "content",
    [
        b"{}\n",
        b"[]\n",
        b"5\n",
        b"\xff\n",
        b"[" * 100_000 + b"\n",
        b"\0" * 100,  # as some disks leave a file after a crash
        b"the batch itself, by mistake",
        *(json.dumps({**LINE, **changed}).encode() + b"\n" for changed in WRONG),
    ],
)
def test_what_no_gate_wrote_is_left_as_it_is_and_releases_nothing(
    ledger: Signer, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "state.jsonl").write_bytes(content)
    assert refused(lambda: gate_of(ledger, tmp_path).release(ledger.permit(), count=1000)) == "state_unusable"
    assert (tmp_path / "state.jsonl").read_bytes() == content


def test_a_state_that_is_no_file_remembers_nothing(ledger: Signer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null"), tmp_path / ("n" * 300)):
        door = Gate(ledger.keys, state=path)
        assert refused(lambda door=door: door.release(ledger.permit(), count=1000)) == "state_unusable"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, (None, 5, [])) for name in ("iss", "ledger", "jti", "round_id", "randomizer", "counts")),
        *((name, (None, "1", True, 1.5, -1, 1 << 60, float("nan"))) for name in ("nbf", "exp", "count_min")),
        ("count_max", ("1", True, -1)),
        ("cohorts", (None, 5, "phones")),
        ("round", (None, [], "x")),
        *((name, (5, [])) for name in ("aud", "collected_on", "admitted_at")),
    ],
)
def test_a_signed_permit_that_states_nonsense_is_refused(
    ledger: Signer, tmp_path: Path, name: str, values: tuple[Any, ...]
) -> None:
    door = gate_of(ledger, tmp_path)
    claims = jwt.decode(ledger.permit(), options={"verify_signature": False})
    for value in values:
        token = jwt.api_jws.encode(
            json.dumps({**claims, name: value}).encode(),
            ledger.pem,
            algorithm="EdDSA",
            headers={"typ": gate.PERMIT, "kid": ledger.jwk["kid"]},
        )
        assert refused(lambda token=token: door.release(token, count=1000)) == "altered"  # type: ignore[misc]
    far = ledger.permit(nbf=1 << 50, exp=1 << 50)  # a moment without a date
    assert refused(lambda: door.release(far, count=1000)) == "not_yet_valid"


def test_a_list_without_what_a_list_has_revokes_everything(ledger: Signer, tmp_path: Path) -> None:
    door = gate_of(ledger, tmp_path)
    whole = {"ledger": LEDGER, "iat": int(time.time()), "exp": int(time.time()) + 100, "revoked": []}
    for name in whole:
        for changed in ({key: value for key, value in whole.items() if key != name}, {**whole, name: None}):
            listed = gate.sign(changed, ledger.pem, kind=gate.REVOKED, key_id=ledger.jwk["kid"])
            ask = lambda listed=listed: door.check(ledger.permit(), count=1000, revoked=listed)  # noqa: E731
            assert refused(ask) == "altered"


@pytest.mark.slow
def test_the_longest_list_of_revoked_permits_is_read(ledger: Signer, tmp_path: Path) -> None:
    listed = ledger.revoked(*(f"{number:064x}" for number in range(REVOKED_MAX)))
    door = gate_of(ledger, tmp_path)
    assert door.check(ledger.permit(), count=1000, revoked=listed).round_id
    own = ledger.permit(jti=f"{REVOKED_MAX - 1:064x}")
    assert refused(lambda: door.check(own, count=1000, revoked=listed)) == "revoked"


@pytest.mark.parametrize(
    "text",
    ["krr(k=1,k='a')", "krr(k=1, k=[1], k=(2,))", "{[]:1}", "-" * 100_000 + "1", "(" * 300, "krr(", "\0", "",
     "krr(k=10, epsilon0=True)", "krr(k=10, epsilon0=1.0000001)", "krr(10, 1)"],
)  # fmt: skip
def test_a_text_that_is_no_such_call_is_another_randomizer(ledger: Signer, tmp_path: Path, text: str) -> None:
    door = gate_of(ledger, tmp_path)
    assert refused(lambda: door.check(ledger.permit(), count=1000, randomizer=text)) == "other_randomizer"
    same = " krr( k = 10,\n epsilon0 = 1.0 ) "
    assert door.check(ledger.permit(), count=1000, randomizer=same).round_id


NO_KEYS: list[Any] = [{}, {"keys": 5}, {"keys": None}, []]


def test_a_gate_is_made_with_what_it_needs_or_not_at_all(
    ledger: Signer, stranger: Signer, tmp_path: Path
) -> None:
    wrong: list[dict[str, Any]] = [
        *({"keys": keys} for keys in NO_KEYS),
        *({"leeway_seconds": leeway} for leeway in (float("nan"), float("inf"), -1, 1e6)),
        *({"signing_key": pem} for pem in (b"", b"junk", stranger.pem[:40], stranger.jwk["x"])),
    ]
    for more in wrong:
        with pytest.raises(ValueError, match="expected"):
            gate_of(ledger, tmp_path, releaser="acme", **more)
    strange: dict[str, Any] = {
        "keys": ["x", {}, {"kty": "OKP"}, {**ledger.jwk, "x": 5}, {**ledger.jwk, "crv": "X25519"}]
    }
    assert (
        refused(lambda: gate_of(ledger, tmp_path, keys=strange).check(ledger.permit(), count=1)) == "altered"
    )


def test_a_count_is_whole_and_no_two_receipts_are_one(ledger: Signer, tmp_path: Path) -> None:
    mine = Signer(tmp_path / "acme.pem", "acme")

    def door(state: str) -> Gate:
        return Gate(ledger.keys, state=tmp_path / state, releaser="acme", signing_key=mine.pem)

    for count in (1000.5, float("inf"), "1000", None):
        with pytest.raises(TypeError):
            door("a").release(ledger.permit(), count=count)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hexadecimal"):
        door("a").release(ledger.permit(), count=1000, batch_sha256="batch.txt")
    own, number = ledger.permit(), type("Number", (), {"__index__": lambda _: 1000})
    first = door("a").release(own, count=number())  # as those of NumPy
    assert (type(first.count), first.count) == (int, 1000)
    assert refused(lambda: door("a").release(own, count=1 << 53)) == "too_many_reports"
    door("a").release(ledger.permit(round_id="w49"), count=(1 << 53) - 1)
    assert refused(lambda: door("a").release(own, count=1000)) == "used_before"  # it reads its own lines
    # Two gates with one name and one key, in one second.
    second = door("b").release(own, count=1000)
    assert first.receipt != second.receipt


def test_a_full_disk_releases_nothing(ledger: Signer, tmp_path: Path) -> None:
    """The file may not grow beyond 100 bytes, so that the line of the release is not written whole."""
    door, before = gate_of(ledger, tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        kind = refused(lambda: door.release(ledger.permit(), count=1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert kind == "state_unusable"
    assert door.release(ledger.permit(), count=1000).count == 1000


def test_of_many_at_once_one_releases(ledger: Signer, tmp_path: Path) -> None:
    own = ledger.permit()

    def attempt(_number: int) -> str:
        try:
            return gate_of(ledger, tmp_path).release(own, count=1000).round_id
        except GateRefused as error:
            return error.kind

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(attempt, range(24)))
    assert sorted(answers) == ["used_before"] * 23 + ["w48"]


ALONE = """
import importlib.abc, json, sys
sys.path[:] = [path for path in sys.path if path] + [{folder!r}]

class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("shuffle_ledger", "numpy", "scipy", "pydantic", "sqlalchemy", "click"):
            raise ImportError(f"the gate needs {{name}}")

sys.meta_path.insert(0, Nothing())
import gate
from pathlib import Path
door = gate.Gate(json.loads(Path("keys.json").read_text()), state=Path("state.jsonl"))
print(door.release(Path("permit").read_text(), count=1000).round_id, flush=True)
sys.stdin.read()
"""


def test_the_one_file_works_alone_and_remembers_after_kill_9(ledger: Signer, tmp_path: Path) -> None:
    shutil.copy(str(gate.__file__), tmp_path / "gate.py")
    (tmp_path / "keys.json").write_text(json.dumps(ledger.keys))
    (tmp_path / "permit").write_text(ledger.permit())
    program = [sys.executable, "-c", ALONE.format(folder=str(tmp_path))]
    with subprocess.Popen(
        program, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "w48\n"
        os.kill(first.pid, signal.SIGKILL)
    done = subprocess.run(
        program, cwd=tmp_path, input="", capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert "expected no second release" in done.stderr
