"""A checkpoint detects losses that the database alone cannot, and only the key's owner can make one."""

from __future__ import annotations

import copy
import dataclasses
import json
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.checkpoints.making import make_checkpoint
from shuffle_ledger.ledger.errors import BadSignature, InvalidValue
from shuffle_ledger.ledger.reports.budgets import heads
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.checkpoint import Checkpoint, check_signature, read_checkpoint
from shuffle_ledger.ledger.values.saved_heads import SavedHeads, saved_heads
from shuffle_ledger.ledger.values.signing import SigningKey, read_public_key
from shuffle_ledger.ledger.verification.verifier import verify
from tests.ledger.clerk import open_as_usual

pytestmark = pytest.mark.policies


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.generate()


@pytest.fixture
def signed(phones: Store, key: SigningKey) -> dict[str, Any]:
    """Return the checkpoint of a ledger with two cohorts, as JSON."""
    open_as_usual(phones, "Ökohort", population=9, delta=1e-6)
    return json.loads(json.dumps(make_checkpoint(phones, key).to_json()))  # type: ignore[no-any-return]


def changed_places(value: Any) -> list[Any]:
    """Return the JSON value with each of its leaves changed, one at a time."""
    if isinstance(value, dict):
        return [value | {name: other} for name, item in value.items() for other in changed_places(item)]
    if isinstance(value, list):
        shorter = [value[:place] + value[place + 1 :] for place in range(len(value))]
        return shorter + [
            [*value[:place], other, *value[place + 1 :]]
            for place, item in enumerate(value)
            for other in changed_places(item)
        ]
    if isinstance(value, int):
        return [value + 1]
    return [
        value[:place] + ("0" if value[place] != "0" else "1") + value[place + 1 :]
        for place in range(len(value))
    ]


def test_a_checkpoint_survives_its_file_and_says_where_every_chain_ends(
    phones: Store, key: SigningKey, signed: dict[str, Any]
) -> None:
    checkpoint = read_checkpoint(signed)
    assert checkpoint.to_json() == signed
    check_signature(checkpoint, key.public_key_bytes)
    check_signature(checkpoint, None)
    assert signed["heads"] == heads(phones)["heads"]
    assert [head.cohort for head in checkpoint.heads] == ["phones", "Ökohort"]
    assert abs(phones.standing().at - checkpoint.created_at) < timedelta(hours=1)


def test_the_signature_is_over_the_canonical_bytes_alone(key: SigningKey, signed: dict[str, Any]) -> None:
    """What somebody else's program would check, step by step."""
    content = {name: value for name, value in signed.items() if name != "signature"}
    message = canonical.framed_digest("shuffle-ledger/checkpoint/1", canonical.encode(content))
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signed["public_key"]))
    public.verify(bytes.fromhex(signed["signature"]), message)


def test_any_change_to_any_part_is_noticed(key: SigningKey, signed: dict[str, Any]) -> None:
    changes = changed_places(signed)
    assert len(changes) > 400
    for other in changes:
        assert other != signed
        with pytest.raises((BadSignature, InvalidValue)):
            check_signature(read_checkpoint(other), None)
        with pytest.raises((BadSignature, InvalidValue)):
            check_signature(read_checkpoint(other), key.public_key_bytes)


def test_another_key_is_not_trusted(phones: Store, key: SigningKey) -> None:
    forged = make_checkpoint(phones, SigningKey.generate())
    check_signature(forged, None)  # its maker had the key that it names: that is all
    with pytest.raises(BadSignature, match="trusted"):
        check_signature(forged, key.public_key_bytes)
    with pytest.raises(BadSignature, match="signature"):
        check_signature(dataclasses.replace(forged, public_key=key.public_key_bytes), key.public_key_bytes)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("format", ["shuffle-ledger-checkpoint-2", None, 1]),
        ("ledger_id", ["", "0" * 31, "g" * 32, "A" * 32, 5, None]),
        ("created_at", ["", "yesterday", "2026-01-01T00:00:00", "2026-01-01T00:00:00Z", 5, "\ud800"]),
        ("heads", [None, {}, [1], [{}], [{"cohort": "a", "sequence": 1}]]),
        ("software", ["", None, "x" * 201, 1]),
        ("numerical_policy", ["", None, ["a"]]),
        ("public_key", ["", "0" * 63, "0" * 66, "Z" * 64, None]),
        ("signature", ["", "0" * 127, "0" * 130, None]),
    ],
)
def test_what_is_no_checkpoint_is_refused_by_field(
    signed: dict[str, Any], field: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(InvalidValue) as caught:
            read_checkpoint(signed | {field: value})
        assert caught.value.field.startswith(f"checkpoint.{field}")
    with pytest.raises(InvalidValue):
        read_checkpoint({name: value for name, value in signed.items() if name != field})
    with pytest.raises(InvalidValue):
        read_checkpoint(signed | {"note": "more than is signed"})


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": 0},
        {"sequence": 2**63},
        {"sequence": True},
        {"sequence": 1.0},
        {"digest": "0" * 63},
        {"digest": None},
        {"cohort": ""},
        {"cohort": "\ud800"},
        {"more": 1},
    ],
)
def test_heads_are_read_strictly(signed: dict[str, Any], change: dict[str, Any]) -> None:
    other = copy.deepcopy(signed)
    other["heads"][0] |= change
    with pytest.raises(InvalidValue):
        read_checkpoint(other)


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0, 1, 1)])
def test_every_cohort_has_one_head_in_one_order(signed: dict[str, Any], order: tuple[int, ...]) -> None:
    with pytest.raises(InvalidValue, match="order"):
        read_checkpoint(signed | {"heads": [signed["heads"][place] for place in order]})


def test_a_key_file_is_its_owners_alone_and_never_overwritten(tmp_path: Path, key: SigningKey) -> None:
    path = tmp_path / "signing.pem"
    key.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert SigningKey.load(path).public_key_bytes == key.public_key_bytes
    with pytest.raises(InvalidValue) as caught:
        SigningKey.generate().save(path)
    assert caught.value.field == "signing_key"
    assert path.read_bytes() == before
    with pytest.raises(InvalidValue):
        key.save(tmp_path / "nowhere" / "signing.pem")


def test_files_without_a_usable_key_are_refused(tmp_path: Path) -> None:
    def pem(private: Any, encryption: Any) -> bytes:
        pkcs8 = serialization.PrivateFormat.PKCS8
        return private.private_bytes(serialization.Encoding.PEM, pkcs8, encryption)  # type: ignore[no-any-return]

    password = serialization.BestAvailableEncryption(b"secret")
    contents = [
        b"",
        b"not a key",
        b"x" * 100_000,
        pem(Ed25519PrivateKey.generate(), password),
        pem(X25519PrivateKey.generate(), serialization.NoEncryption()),
    ]
    path = tmp_path / "signing.pem"
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(InvalidValue) as caught:
            SigningKey.load(path)
        assert caught.value.field == "signing_key"
        with pytest.raises(InvalidValue) as caught:
            read_public_key(str(path))
        assert caught.value.field == "public_key"
    with pytest.raises(InvalidValue):
        SigningKey.load(tmp_path / "absent.pem")


def test_a_public_key_is_read_in_every_form(tmp_path: Path, key: SigningKey) -> None:
    public = Ed25519PublicKey.from_public_bytes(key.public_key_bytes)
    encoded = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public.pem").write_bytes(encoded)
    (tmp_path / "public.hex").write_text(key.public_key_bytes.hex() + "\n")
    key.save(tmp_path / "signing.pem")
    for name in ("public.pem", "public.hex", "signing.pem"):
        assert read_public_key(str(tmp_path / name)) == key.public_key_bytes
    assert read_public_key(key.public_key_bytes.hex().upper()) == key.public_key_bytes
    for wrong in ("", "ab", "absent.pem", key.public_key_bytes.hex() + "00"):
        with pytest.raises(InvalidValue):
            read_public_key(wrong)


def test_heads_that_nobody_signed_do_not_pass_for_a_checkpoint(phones: Store, key: SigningKey) -> None:
    assert saved_heads(heads(phones)).signature == "none"
    with pytest.raises(BadSignature):
        saved_heads(heads(phones), key.public_key_bytes)


def saved(checkpoint: Checkpoint, trusted: bytes | None = None) -> SavedHeads:
    return saved_heads(checkpoint.to_json(), trusted)


def test_verification_says_how_far_a_checkpoint_can_be_believed(
    phones: Store, accountant: Accountant, key: SigningKey
) -> None:
    made = make_checkpoint(phones, key)
    for trusted, signature in ((None, "valid"), (key.public_key_bytes, "trusted")):
        report = verify(phones, accountant, against=saved(made, trusted))
        assert report.ok
        assert report.against is not None
        assert (report.against.signature, report.against.ledger_id) == (signature, made.ledger_id)
    assert verify(phones, accountant).against is None


@pytest.mark.parametrize(
    "statement",
    ["UPDATE ledger_identity SET ledger_id = ledger_id", "DELETE FROM ledger_identity"],
)
def test_a_ledger_keeps_its_identity(store: Store, statement: str) -> None:
    before = store.standing().ledger_id
    with pytest.raises(DBAPIError), store._engine.begin() as connection:
        connection.execute(text(statement))
    with pytest.raises(DBAPIError), store._engine.begin() as connection:
        connection.execute(text("INSERT INTO ledger_identity VALUES (2, :name)"), {"name": "0" * 32})
    assert store.standing().ledger_id == before
