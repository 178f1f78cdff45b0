"""Permits are of admitted rounds alone; receipts settle by the truth, and find a ledger that lost some."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.gate import PERMIT, RECEIPT, Gate, GateRefused, read_permit, read_token, sign
from shuffle_ledger.ledger.decisions import (
    correct,
    record_incident,
    register,
    register_and_admit,
    round_record,
    settle,
    void,
)
from shuffle_ledger.ledger.errors import (
    BadSignature,
    BehindCheckpoint,
    Conflict,
    InvalidValue,
    NotCollectable,
    NotFound,
    TryAgain,
    Unavailable,
)
from shuffle_ledger.ledger.evidence import make_bundle, verify_bundle
from shuffle_ledger.ledger.evidence.statement_builder import make_statement
from shuffle_ledger.ledger.permits import PermitKeys, issue_permit, jwk, read_jwks, revoked_permits
from shuffle_ledger.ledger.receipts import (
    read_receipt,
    receipt_problems,
    settle_by_receipt,
    stored_receipts,
)
from shuffle_ledger.ledger.settings import Settings
from shuffle_ledger.ledger.storage import permits as rows
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import Admitted, Incident, RoundRequest, Settled, SigningKey
from tests.ledger.clerk import open_as_usual

pytestmark = [pytest.mark.slow, pytest.mark.policies]

MakeRequest = Callable[..., RoundRequest]


class House:
    """A ledger's keys, a releaser "acme" with its key and gate, and the files of both."""

    def __init__(self, folder: Path, store: Store, accountant: Accountant, make_request: MakeRequest) -> None:
        self.folder, self.store, self.accountant, self._request = folder, store, accountant, make_request
        self.key("permit.pem")
        self.key("acme.pem", "acme")
        self.settings = Settings(
            permit_key=folder / "permit.pem", releaser_keys=folder / "acme.pem.json", signing_key=None
        )

    def key(self, file: str, name: str | None = None) -> bytes:
        """Make a key in a file, with its JWK set beside it; return the PEM."""
        key = SigningKey.generate()
        key.save(self.folder / file)
        public = {"keys": [jwk(key.public_key_bytes, name)]}
        (self.folder / f"{file}.json").write_text(str(public).replace("'", '"'))
        return (self.folder / file).read_bytes()

    @property
    def keys(self) -> PermitKeys:
        """The keys as the settings name them now."""
        return PermitKeys.of(self.settings, self.store.ledger_id())

    def admitted(self, round_id: str = "w48", **changes: Any) -> Admitted:
        """Register a round of 1,000 reports."""
        audience = changes.pop("audience", ())
        request = dataclasses.replace(self._request(round_id, **changes), audience=audience)
        outcome, _ = register_and_admit(self.store, self.accountant, request, actor="tester")
        assert isinstance(outcome, Admitted)
        return outcome

    def permit(self, round_id: str = "w48", **more: Any) -> str:
        """Return the permit of a round."""
        return issue_permit(self.store, self.keys, round_id, actor="tester", **more).permit

    def gate(self, state: str = "state.jsonl", key: str = "acme.pem") -> Gate:
        """Return the gate of acme."""
        pem = (self.folder / key).read_bytes()
        return Gate(self.keys.published, state=self.folder / state, releaser="acme", signing_key=pem)

    def receipt(self, permit: str, count: int = 1000, *, state: str = "state.jsonl", **more: Any) -> str:
        """Release a batch, and return the receipt."""
        return str(self.gate(state).release(permit, count=count, **more).receipt)

    def settle(self, receipt: str) -> Settled | Incident:
        """Settle by a receipt."""
        return settle_by_receipt(self.store, self.accountant, self.keys, receipt, actor="tester")

    def problems(self, *receipts: str) -> list[str]:
        """Return what the chains contradict of kept receipts, and of those in the ledger."""
        keys = self.keys
        kept = [read_receipt(each, releasers=keys.releasers, permits=keys.published) for each in receipts]
        every = {each.digest: each for each in [*stored_receipts(self.store), *kept]}
        return [what for _, what in receipt_problems(every.values(), self.store.entries_about)]

    def revoked(self) -> list[str]:
        """Return the events of revoked permits."""
        token = revoked_permits(self.store, self.keys)
        return list(read_token(token, self.keys.published, kind="shuffle-revoked+jwt")[0]["revoked"])


@pytest.fixture
def house(tmp_path: Path, phones: Store, accountant: Accountant, make_request: MakeRequest) -> House:
    """Return keys and a releaser around the cohort "phones"."""
    return House(tmp_path, phones, accountant, make_request)


def test_a_permit_says_what_was_admitted(house: House) -> None:
    admitted = house.admitted(sampled_from=50_000, collected_on=date(2026, 3, 2))
    own = house.gate().check(house.permit(), count=1000, randomizer="krr(k=10, epsilon0=2)")
    assert own.event == house.store.entry("phones", admitted.sequence).digest.hex()
    assert (own.ledger, own.cohorts, own.round_id) == (house.store.ledger_id(), ("phones",), "w48")
    assert own.round["analysis"] == "blanket"
    assert own.round["sampled_from"] == 50_000
    assert (own.count_min, own.count_max, own.counts) == (1000, 1000, "reports")
    assert own.collected_on == "2026-03-02"
    house.admitted("coin", participation=0.5)
    users = house.gate().check(house.permit("coin"), count=1000)
    assert (users.counts, users.count_max) == ("users", None)


def test_a_round_has_one_permit(house: House) -> None:
    house.admitted()
    own = house.permit()
    assert house.permit() == own
    with pytest.raises(Conflict, match="any releaser"):
        house.permit(releaser="acme")
    house.admitted("w49")
    named = house.permit("w49", releaser="acme")
    with pytest.raises(Conflict, match="acme"):
        house.permit("w49")
    assert house.gate().check(named, count=1000).releaser == "acme"


def test_only_an_admitted_round_gets_a_permit(house: House, make_request: MakeRequest) -> None:
    with pytest.raises(NotFound):
        house.permit("unknown")
    register(house.store, make_request("waits", epsilon0=1.75), actor="tester")
    with pytest.raises(Conflict, match="pending"):
        house.permit("waits")
    refused, _ = register_and_admit(
        house.store, house.accountant, make_request("refused", reports=2, epsilon0=5.0), actor="tester"
    )
    assert not isinstance(refused, Admitted)
    with pytest.raises(Conflict, match="refused"):
        house.permit("refused")
    for round_id in ("voided", "settled"):
        house.admitted(round_id)
    void(house.store, house.accountant, "voided", reason="none left", actor="tester")
    settle(house.store, house.accountant, "settled", reports=1000, actor="tester")
    for round_id in ("voided", "settled"):
        with pytest.raises(NotCollectable, match=round_id):
            house.permit(round_id)
    house.admitted("late", collected_on=date(2026, 1, 2))
    house.settings = house.settings.model_copy(update={"permit_days": 1e-9})
    with pytest.raises(Conflict, match="expired"):
        # The collection ended long ago: the permit would end at the admission.
        house.permit("late")


def test_a_round_that_ends_after_its_permit_is_revoked(house: House) -> None:
    events = {}
    for round_id in ("open", "voided", "settled", "without"):
        admitted = house.admitted(round_id)
        events[round_id] = house.store.entry("phones", admitted.sequence).digest.hex()
    permits = {name: house.permit(name) for name in ("open", "voided", "settled")}
    assert house.revoked() == []
    for name in ("voided", "without"):
        void(house.store, house.accountant, name, reason="cancelled", actor="tester")
    settle(house.store, house.accountant, "settled", reports=1000, actor="tester")
    assert house.revoked() == sorted([events["voided"], events["settled"]])
    listed = revoked_permits(house.store, house.keys)
    assert house.gate().check(permits["open"], count=1000, revoked=listed).round_id
    with pytest.raises(GateRefused, match="revoked"):
        house.gate().release(permits["voided"], count=1000, revoked=listed)
    # Overspent: what was admitted must not be released either.
    record_incident(
        house.store,
        house.accountant,
        "phones",
        round_id="leak",
        described=None,
        reason="leak",
        actor="tester",
    )
    assert set(house.revoked()) == {events[name] for name in permits}


def test_keys_rotate(house: House) -> None:
    house.admitted()
    before = house.permit()
    assert house.revoked() == []
    house.key("new.pem")
    house.settings = house.settings.model_copy(
        update={"permit_key": house.folder / "new.pem", "permit_keys_retired": (house.folder / "permit.pem",)}
    )
    after = house.permit()
    assert after != before
    assert house.gate().check(after, count=1000).event == house.gate().check(before, count=1000).event
    first = house.receipt(before)
    with pytest.raises(GateRefused, match="second"):
        house.receipt(after)
    assert isinstance(house.settle(first), Settled)
    # The old key was stolen: without it among the keys, what it signs is refused, receipts included.
    house.settings = house.settings.model_copy(update={"permit_keys_retired": ()})
    with pytest.raises(GateRefused, match="trusted keys"):
        house.gate().check(before, count=1000)
    with pytest.raises(BadSignature, match="trusted keys"):
        house.settle(first)


def test_permits_are_not_signed_by_the_key_of_statements(house: House) -> None:
    for path in ("permit.pem", "acme.pem"):
        settings = house.settings.model_copy(update={"signing_key": house.folder / path})
        if path == "permit.pem":
            with pytest.raises(InvalidValue, match="another key"):
                PermitKeys.of(settings, "x")
        else:
            assert PermitKeys.of(settings, "x").key_id
    with pytest.raises(Conflict, match="PERMIT_KEY"):
        revoked_permits(house.store, PermitKeys.of(Settings(), house.store.ledger_id()))
    assert read_jwks(house.folder / "acme.pem.json")["keys"][0]["kid"] == "acme"


@pytest.mark.parametrize("count", [1000, 1300, 700])
def test_a_receipt_settles_by_the_number_that_it_states(house: House, count: int) -> None:
    """A gate that is not ours let fewer leave than were permitted: that is what is charged."""
    house.admitted()
    receipt = _forged(house, house.permit(), count) if count < 1000 else house.receipt(house.permit(), count)
    settled = house.settle(receipt)
    assert isinstance(settled, Settled)
    assert settled.reports == count
    assert house.settle(receipt) == settled
    assert house.problems() == []


def test_a_release_without_an_admission_becomes_an_incident(house: House) -> None:
    for name in ("voided", "twice", "hand"):
        house.admitted(name)
    void(house.store, house.accountant, "twice", reason="-", actor="tester")
    house.admitted("other")
    permit = house.permit("voided")
    receipt = house.receipt(permit)
    void(house.store, house.accountant, "voided", reason="nothing left", actor="tester")
    assert "voided: somebody attested" in house.problems(receipt)[0]
    incident = house.settle(receipt)
    assert isinstance(incident, Incident)
    assert (incident.round_id, incident.overspent) == ("voided", False)
    assert house.settle(receipt) == incident
    assert house.problems(receipt) == []
    # The one admission of a round was used at two gates.
    again = house.permit("other")
    first, second = (house.receipt(again, 1000 + n, state=f"state-{n}") for n in (1, 2))
    assert isinstance(house.settle(first), Settled)
    assert "another release by the same event" in house.problems(second)[0]
    told = house.settle(second)
    assert isinstance(told, Incident)
    assert told.round_id.startswith("receipt-")
    assert told.round is not None
    assert told.round.reports == 1002
    assert house.settle(second) == told
    assert house.problems(first, second) == []
    # It was settled by hand with another number: a correction tells the truth.
    by_hand = house.receipt(house.permit("hand"), 1500)
    settle(house.store, house.accountant, "hand", reports=1600, actor="tester")
    with pytest.raises(Conflict, match="settled"):
        house.settle(by_hand)
    assert house.problems() == ["1500 reports were released, and the chain charges 1600"]
    correct(house.store, house.accountant, "hand", {"reports": 1500}, reason="receipt", actor="tester")
    assert house.problems() == []


def test_of_two_receipts_at_once_one_settles(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that another process keeps first, although this one looked at the clock before."""
    house.admitted()
    permit = house.permit()
    first, second = (house.receipt(permit, state=name) for name in "ab")
    keep = rows.keep_receipt
    answers = []

    def overtaken(*given: Any) -> Any:
        monkeypatch.setattr(rows, "keep_receipt", keep)
        answers.append(house.settle(second))
        return keep(*given)

    monkeypatch.setattr(rows, "keep_receipt", overtaken)
    answers.append(house.settle(first))
    assert [type(answer) for answer in answers] == [Settled, Incident]
    assert [house.settle(each) for each in (second, first)] == answers
    assert house.problems() == []


def test_many_receipts_at_once_are_charged_each(house: House) -> None:
    house.admitted(epsilon0=0.5)
    permit = house.permit()
    receipts = [house.receipt(permit, state=str(number)) for number in range(4)]

    def told(receipt: str) -> Settled | Incident:
        while True:
            with suppress(TryAgain):
                return house.settle(receipt)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(told, receipts))
    assert sorted(type(answer).__name__ for answer in answers) == ["Incident"] * 3 + ["Settled"]


def test_a_receipt_that_is_kept_and_not_settled_is_a_problem(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_given: Any, **_named: Any) -> Any:
        raise Unavailable("the database went away")

    house.admitted("few")
    house.admitted("sampled", sampled_from=50_000)
    few, more = (_forged(house, house.permit(name), n) for name, n in (("few", 700), ("sampled", 1001)))
    with monkeypatch.context() as patched:
        patched.setattr("shuffle_ledger.ledger.receipts.settle", lost)
        for receipt in (few, more):
            with pytest.raises(Unavailable):
                house.settle(receipt)
    assert sorted(house.problems()) == [
        "1001 reports were released, and the chain charges 1000: the round is not settled",
        "700 reports were released, and the chain charges 1000: the round is not settled",
    ]
    stated = make_statement(house.store, house.accountant, ["phones"], made_at=datetime.now(UTC))
    assert {each.release and each.release.basis for each in stated.cohorts[0].rounds} == {"contradicted"}
    for receipt in (few, more):
        assert isinstance(house.settle(receipt), Settled)
    assert house.problems() == []


def test_a_receipt_of_what_no_release_is_is_not_kept(house: House) -> None:
    """Signed by the releaser, or with a permit that the ledger's key signed."""
    house.admitted(sampled_from=50_000)
    permit = house.permit()
    own = read_permit(permit, house.keys.published)
    wrong = [_forged(house, permit, count) for count in (0, -1, 50_001, 1 << 60)]
    said: list[dict[str, Any]] = [{"iat": "x"}, {"iat": 1 << 52}, {"batch_sha256": "x"}, {"batch_sha256": 5}]
    wrong += [_forged(house, permit, 1000, **changes) for changes in said]
    claims = jwt.decode(permit, options={"verify_signature": False})
    stated: list[dict[str, Any]] = [
        {"cohorts": []},
        {"cohorts": [["phones"]]},
        {"cohorts": ["phones", "phones"]},
        {"round": {}},
        {"round": {**claims["round"], "more": 1}},
        {"admitted_at": "x"},
        {"admitted_at": "2026-01-01T00:00:00"},
        {"collected_on": "x"},
        {"collected_until": "2026-01-01"},
        {"round_id": ""},
        {"round_id": "\ud800"},
    ]
    for changes in stated:
        pem = (house.folder / "permit.pem").read_bytes()
        forged = sign({**claims, **changes}, pem, kind=PERMIT, key_id=own.key["kid"])
        wrong.append(_forged(house, forged, 1000))
    for receipt in wrong:
        with pytest.raises(BadSignature):
            house.settle(receipt)
    assert stored_receipts(house.store) == []


def test_a_ledger_that_was_put_back_signs_no_list(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def behind() -> None:
        raise BehindCheckpoint("put back")

    assert house.revoked() == []
    monkeypatch.setattr(house.store, "check_anchor", behind)
    with pytest.raises(BehindCheckpoint):
        house.revoked()


def test_forged_receipts_are_refused(house: House, make_request: MakeRequest) -> None:
    house.admitted()
    own = house.permit()
    good = house.receipt(own)
    keys = house.keys
    for place in range(0, len(good), 97):
        changed = good[:place] + ("A" if good[place] != "A" else "B") + good[place + 1 :]
        with pytest.raises(BadSignature):
            read_receipt(changed, releasers=keys.releasers, permits=keys.published)
    house.key("thief.pem", "acme")
    with pytest.raises(BadSignature, match="altered"):
        house.settle(_forged(house, own, 900, key="thief.pem"))
    other = dataclasses.replace(keys, ledger="b" * 32)
    with pytest.raises(BadSignature, match="ledger"):
        settle_by_receipt(house.store, house.accountant, other, good, actor="tester")
    for claim, value in (("round_id", "w49"), ("event", "f" * 64), ("permit_sha256", ""), ("iss", "x")):
        with pytest.raises(BadSignature, match="another permit"):
            house.settle(_forged(house, own, 1000, **{claim: value}))
    with pytest.raises(NotFound, match="phones"):
        settle_by_receipt(
            house.store, house.accountant, keys, good, actor="tester", reaches=lambda name: name != "phones"
        )
    assert stored_receipts(house.store) == []
    assert round_record(house.store, "w48").state == "admitted"


def test_a_stolen_key_of_permits_is_found_by_the_receipts_of_its_releases(house: House) -> None:
    house.admitted()
    own = read_permit(house.permit(), house.keys.published)
    claims = jwt.decode(own.token, options={"verify_signature": False}) | {"jti": "f" * 64, "round_id": "w50"}
    forged = sign(claims, (house.folder / "permit.pem").read_bytes(), kind=PERMIT, key_id=own.key["kid"])
    receipt = house.receipt(forged)  # the gate cannot tell
    assert "another ledger signs with its key" in house.problems(receipt)[0]
    told = house.settle(receipt)
    assert isinstance(told, Incident)
    assert told.round_id == "w50"


def test_a_stolen_key_of_a_gate_permits_nothing(house: House) -> None:
    for name in ("real", "later"):
        house.admitted(name)
    wrong = house.settle(_forged(house, house.permit("real"), 3000))  # the thief has the permit, too
    assert isinstance(wrong, Settled)
    house.key("thief.pem")
    own = read_permit(house.permit("later"), house.keys.published)
    claims = jwt.decode(own.token, options={"verify_signature": False}) | {"count_min": 1}
    permit = sign(claims, (house.folder / "thief.pem").read_bytes(), kind=PERMIT, key_id=own.key["kid"])
    with pytest.raises(GateRefused, match="altered"):
        house.receipt(permit, 5)
    house.settings = house.settings.model_copy(update={"releaser_keys": None})
    with pytest.raises(BadSignature, match="trusted keys"):
        house.settle(_forged(house, house.permit("later"), 3000))


def test_a_named_permit_leaves_by_no_other_gate(house: House) -> None:
    house.admitted()
    permit = house.permit(releaser="beta")
    with pytest.raises(GateRefused, match="beta"):
        house.receipt(permit)
    with pytest.raises(BadSignature, match="beta"):
        house.settle(_forged(house, permit, 1000))


def test_a_releaser_that_lies_about_counts_is_bound_to_the_lie(house: House) -> None:
    """Nothing finds the lie; the receipt says for ever who told it, and the budget of others is as it was."""
    house.admitted()
    settled = house.settle(_forged(house, house.permit(), 1_000_000))
    assert isinstance(settled, Settled)
    stated = make_statement(house.store, house.accountant, ["phones"], made_at=datetime.now(UTC))
    (one,) = stated.cohorts[0].rounds
    assert one.release is not None
    assert [(each.releaser, each.reports) for each in one.release.receipts] == [("acme", 1_000_000)]


@pytest.fixture
def cohorts(house: House) -> House:
    """Return the house with a second cohort, and a round of both."""
    open_as_usual(house.store, "tablets")
    house.admitted("joint", cohort="phones", audience=("phones", "tablets"))
    return house


def test_a_round_of_several_cohorts_has_one_permit_and_one_receipt(cohorts: House) -> None:
    permit = cohorts.permit("joint")
    receipt = cohorts.receipt(permit)
    assert cohorts.gate().released(permit)
    settled = cohorts.settle(receipt)
    assert isinstance(settled, Settled)
    assert len(settled.audience) == 2
    for name in ("phones", "tablets"):
        stated = make_statement(cohorts.store, cohorts.accountant, [name], made_at=datetime.now(UTC))
        assert [each.release and each.release.basis for each in stated.cohorts[0].rounds] == ["receipt"]
        bundle = make_bundle(cohorts.store, [name]).data
        report = verify_bundle(bundle, cohorts.accountant)
        assert report.ok
        assert [(each.releaser, each.receipts) for each in report.releasers] == [("acme", 1)]
    assert cohorts.problems() == []


def test_the_statement_and_the_bundle_say_whose_word_it_is(house: House) -> None:
    for name in ("receipt", "hand", "open", "voided", "differs"):
        house.admitted(name)
    assert isinstance(house.settle(house.receipt(house.permit("receipt"))), Settled)
    settle(house.store, house.accountant, "hand", reports=1000, actor="tester")
    house.permit("open")
    void(house.store, house.accountant, "voided", reason="-", actor="tester")

    def basis() -> dict[str, str]:
        stated = make_statement(house.store, house.accountant, ["phones"], made_at=datetime.now(UTC))
        return {each.round_id: each.release.basis for each in stated.cohorts[0].rounds if each.release}

    expected = {
        "receipt": "receipt", "hand": "attested", "open": "none", "voided": "none", "differs": "none"
    }  # fmt: skip
    assert basis() == expected
    report = verify_bundle(make_bundle(house.store, ["phones"]).data, house.accountant)
    assert report.ok
    (acme,) = report.releasers
    assert (acme.releaser, acme.receipts, acme.reports) == ("acme", 1, 1000)
    assert acme.public_key == read_jwks(house.folder / "acme.pem.json")["keys"][0]["x"]
    # A number by hand that the releaser's receipt contradicts.
    receipt = house.receipt(house.permit("differs"), 1200)
    settle(house.store, house.accountant, "differs", reports=1700, actor="tester")
    with pytest.raises(Conflict):
        house.settle(receipt)
    assert basis() == {**expected, "differs": "contradicted"}
    report = verify_bundle(make_bundle(house.store, ["phones"]).data, house.accountant)
    assert [finding.member for finding in report.findings] == ["receipts.json"]
    assert "1200 reports were released, and the chain charges 1700" in report.findings[0].what


@pytest.fixture
def restored(
    sqlite_url: str, tmp_path: Path, accountant: Accountant, make_request: MakeRequest
) -> Iterator[tuple[House, House]]:
    """Yield a ledger as it was, and the same put back to a backup of before its round."""
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with Store.connect(sqlite_url) as store:
        open_as_usual(store, "phones")
        with sqlite3.connect(path) as source, sqlite3.connect(tmp_path / "backup.db") as target:
            source.backup(target)
        with Store.connect(f"sqlite:///{tmp_path}/backup.db") as backup:
            house = House(tmp_path, store, accountant, make_request)
            later = object.__new__(House)
            later.__dict__.update(house.__dict__, store=backup)
            yield house, later


def test_a_ledger_of_an_old_backup_permits_twice_and_is_found_out(restored: tuple[House, House]) -> None:
    before, after = restored
    before.admitted()
    first = before.permit()
    receipt = before.receipt(first)
    # Put back: the same name is free again, and admitted by another event.
    after.admitted()
    second = after.permit()
    with pytest.raises(GateRefused, match="second"):
        after.receipt(second)  # the gate remembers
    elsewhere = after.receipt(second, state="another.jsonl")  # another gate cannot
    assert isinstance(after.settle(elsewhere), Settled)
    (what,) = after.problems(receipt)
    assert "not in the chain: the ledger was put back" in what
    spent = after.store.view("phones").spent.epsilon_upper
    told = after.settle(receipt)
    assert isinstance(told, Incident)
    assert told.epsilon_spent_upper > spent
    assert after.problems(receipt) == []
    assert after.settle(receipt) == told


def test_a_lost_round_of_several_cohorts_is_an_incident_of_each(restored: tuple[House, House]) -> None:
    before, after = restored
    for house in restored:
        open_as_usual(house.store, "tablets")
    before.admitted("both", cohort="phones", audience=("phones", "tablets"))
    receipt = before.receipt(before.permit("both"))
    told = after.settle(receipt)
    assert isinstance(told, Incident)
    assert after.settle(receipt) == told
    for name in ("phones", "tablets"):
        view = after.store.view(name)
        assert view.spent.epsilon_upper > 0
        assert view.head_sequence == 2


def test_a_ledger_of_an_old_backup_that_lost_the_round_records_it(restored: tuple[House, House]) -> None:
    before, after = restored
    before.admitted("lost")
    receipt = before.receipt(before.permit("lost"))
    told = after.settle(receipt)
    assert isinstance(told, Incident)
    assert (told.round_id, told.overspent) == ("lost", False)
    assert after.settle(receipt) == told
    with pytest.raises((Conflict, NotCollectable)):
        after.admitted("lost")


def _forged(house: House, permit: str, count: int, *, key: str = "acme.pem", **changes: Any) -> str:
    """Return a receipt as a releaser can sign it that has no gate."""
    own = read_permit(permit, house.keys.published)
    claims = {
        "iss": "acme",
        "iat": int((datetime.now(UTC) - timedelta(seconds=1)).timestamp()),
        "ledger": own.ledger,
        "round_id": own.round_id,
        "event": own.event,
        "count": count,
        "batch_sha256": None,
        "permit_sha256": own.digest,
        "permit": permit,
        **changes,
    }
    return sign(claims, (house.folder / key).read_bytes(), kind=RECEIPT, key_id="acme")
