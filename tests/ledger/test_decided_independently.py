"""`examples/verify_bundle.py`, written from docs/bundle-format.md, decides every entry as the ledger did; and
of any number that its owner forged, the ledger's own verification finds the change, too."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions import (
    admit,
    register,
)
from shuffle_ledger.ledger.evidence.bundle import make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.machine import (
    Cause,
    Charge,
    Cost,
    Described,
    Level,
    Limits,
    Request,
    Round,
    Rules,
    Total,
)
from shuffle_ledger.ledger.machine import filters as machine_filters
from shuffle_ledger.ledger.policies.numbers import spelled
from shuffle_ledger.ledger.policies.registry import rules_digest
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import (
    RefusalReason,
)
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.values.windows import Window
from tests.ledger.clerk import DAY, Clerk, a_monday, krr, parsed, today
from tests.ledger.test_bundles import (
    EXAMPLE,
    example_module,
    forged,
    leaves,
    lines_of,
    members_of,
    repacked,
)
from tests.ledger.test_every_field import more

KEY = SigningKey.generate()
AUDITOR = Accountant()  # another one than the ledger's
CHAIN = "chains/000001.txt"
WEEK = Window(unit="week", epsilon=0.2, delta=1e-7)
TWO_DAYS = Window(unit="day", sliding=2, epsilon=0.25, delta=1e-7, local_budget=5.0)


REGULAR, IRREGULAR = krr(20_000), krr(10_000, 4.0, sampled_from=100_000)
RARE = krr(500, 4.0, sampled_from=50_000)  # filters bound it badly


def incident(clerk: Clerk, name: str, described: ShuffledRound, cohort: str, *, late: bool = True) -> None:
    """Record a release, attested to be later than the opening or not."""
    now = datetime.now(UTC) - timedelta(milliseconds=2)  # some clocks count no less
    times: dict[str, Any] = {"after": now - timedelta(microseconds=1), "before": now} if late else {}
    clerk.incident(name, described, cohort, **times)


def live_with_filters(clerk: Clerk) -> None:
    """Fill the sliding total, end rounds in each way, and move the budget."""
    clerk.open("life", epsilon=0.2)
    count = 1
    while clerk.admits(REGULAR if count % 2 else IRREGULAR, "life", name=f"l{count}"):
        count += 1
    last = count - 1 if count % 2 else count - 2  # the last irregular one
    clerk.void("l2")  # its reserve was used since
    incident(clerk, "l2", IRREGULAR, "life")
    clerk.correct("l2", reports=9_000)
    clerk.void(f"l{last}")  # it was charged without a reserve
    clerk.settle("l4", 9_950)
    clerk.correct("l6", reports=9_800)
    clerk.void("l6")  # it was corrected, and gives nothing back
    for reports in (9_700, 9_700, 20_000):
        clerk.correct("l4", reports=reports)
    clerk.ask(REGULAR, "life", name="too late")
    clerk.change(0.6, 0.5, 0.7, cohort="life")
    incident(clerk, "early", REGULAR, "life", late=False)
    clerk.open("given back", epsilon=0.5)
    for name in ("g1", "g2", "g3"):
        clerk.ask(IRREGULAR, "given back", name=name)
    clerk.void("g1")
    incident(clerk, "g1", REGULAR, "given back")
    clerk.change(0.4, 1.0, 0.3, 0.5, cohort="given back")
    clerk.freeze("given back")
    clerk.ask(REGULAR, "given back", name="g4")
    clerk.correct("g2", reports=9_000)
    incident(clerk, "g5", REGULAR, "given back")
    clerk.open("deltas", local_budget=2.0)
    approximate = [parsed("generic(epsilon0=0.5)", 20_000, delta0=3e-13)] * 3
    approximate += [parsed(f"declared(epsilon=0.1, delta={delta})") for delta in (3e-9, 1e-3)]
    for described in (*approximate, REGULAR, parsed("table(rows=[[1, 0], [0, 1]])")):
        clerk.ask(described, "deltas")
    clerk.open("few", epsilon=0.4, rounds_per_user=2)
    for name, described in (*((f"f{n}", krr(50_000)) for n in (1, 2, 3)), ("f4", krr(50, 5.0))):
        clerk.ask(described, "few", name=name)
    clerk.void("f1")
    incident(clerk, "f1", REGULAR, "few")
    clerk.correct("f2", reports=40_000)
    clerk.settle("f3", 45_000)
    clerk.close("few")
    clerk.ask(REGULAR, "few")
    clerk.correct("f3", reports=44_000)


def live_with_slots(clerk: Clerk) -> None:
    """Claim slots of a plan alone, and of a plan beside filters."""
    plan = {krr(20_000, 1.0): 2, krr(15_000, 1.0): 1, krr(10_000, 0.5): 1}
    clerk.open("plan", policy="plan", plan=plan, ceiling=1.0)
    for name in ("p1", "p2", "p3", "p4"):
        clerk.ask(krr(20_000, 1.0), "plan", name=name)
    clerk.change(0.01, cohort="plan")
    clerk.ask(krr(10_000, 0.5), "plan")  # it has a slot, and the slots cost more than the budget
    clerk.change(1.0, cohort="plan")
    clerk.settle("p1", 16_000)
    clerk.void("p2")
    incident(clerk, "p2", krr(10_000, 0.5), "plan")
    clerk.correct("p1", reports=3_000)
    clerk.open("both", plan={RARE: 6, krr(10_000, 1.0): 2, krr(9_000, 1.0): 1}, epsilon=0.13)
    for number in range(3):
        clerk.ask(krr(10_000, 1.0), "both", name=f"b{number}")
    for number in range(8):
        clerk.ask(RARE, "both", name=f"r{number}")
    clerk.void("b2")
    incident(clerk, "b2", krr(9_000, 1.0), "both")
    clerk.settle("b0", 9_500)
    clerk.correct("r1", reports=400)
    clerk.change(0.2, cohort="both")


def live_with_others(clerk: Clerk) -> None:
    """Charge rounds to cohorts together, to periods and to a quota."""
    clerk.open("phones", windows=(WEEK, TWO_DAYS), local_budget=9.0)
    clerk.quota("ads", 0.3)
    monday = a_monday()
    clerk.ask(team="ads", name="now")
    for number in range(6):
        clerk.ask(team="ads", on=monday + number * DAY, name=f"w{number}")
    clerk.settle("now", 9_000)
    clerk.void("w1")
    for epsilon in (0.1, 0.3):
        clerk.quota("ads", epsilon)
        clerk.ask(team="ads", on=monday + 30 * DAY)
    clerk.open("weeks", windows=(WEEK,), epsilon=None, delta=None)
    for name in ("x1", "x2"):
        clerk.ask(None, "weeks", name=name)
    clerk.correct("x1", reports=5_000)
    clerk.open("ceiling", ceiling=2.0)
    clerk.open("without")
    for name, reports in (("j1", 150_000), ("j2", 10), ("j3", 120_000)):
        clerk.ask(krr(reports), "ceiling", "without", name=name)
    clerk.settle("j1", 140_000)
    clerk.void("j3")
    clerk.change(1.5, 0.9, 1.0, cohort="ceiling")
    register(clerk.store, clerk.request(krr(9_000), on=today(), name="w9"), actor="ada")
    with pytest.MonkeyPatch.context() as patch:
        clerk.shift(patch, 3 * DAY)
        admit(clerk.store, clerk.accountant, "w9")


@pytest.fixture(scope="module")
def bundles(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, accountant: Accountant
) -> dict[str, bytes]:
    """Return a bundle of each cohort by itself, with its periods and quotas, and one of all, named "all"."""
    path = tmp_path_factory.mktemp("lived") / "ledger.db"
    shutil.copy(sqlite_template, path)
    with Store.connect(f"sqlite:///{path}") as store:
        clerk = Clerk(store, accountant)
        live_with_filters(clerk)
        live_with_slots(clerk)
        live_with_others(clerk)
        names = store.cohort_names()
        made = {name: make_bundle(store, [name], signing_key=KEY).data for name in names}
        return made | {"all": make_bundle(store, names, signing_key=KEY).data}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    return example_module()


def bodies_of(data: bytes) -> list[dict[str, Any]]:
    lines = lines_of(members_of(data), CHAIN)
    return [canonical.decode(line.split(b" ", 3)[3].rstrip(b"\n")) for line in lines]


def is_found(data: bytes, cohort: str) -> bool:
    """Whether the ledger's own verification finds something in one chain, if need be by computing numbers."""
    data = repacked(members_of(data), (cohort,))
    return not all(verify_bundle(data, AUDITOR, numbers=numbers).ok for numbers in ("none", "all"))


def found_in(example: ModuleType, data: bytes, path: Path) -> list[str]:
    path.write_bytes(data)
    return list(example.problems(path, []))


@pytest.mark.slow
def test_every_event_is_decided_alike_with_nothing_but_the_standard_library(
    bundles: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "all.zip").write_bytes(bundles["all"])
    command = [sys.executable, "-S", "-E", str(EXAMPLE), str(tmp_path / "all.zip")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Signature, costs, fits of slots, limits and bounds on epsilon" in done.stdout
    assert "1 refusals of plan were not checked" in done.stdout
    bodies = [body for name in bundles if name != "all" for body in bodies_of(bundles[name])]
    assert {body["kind"] for body in bodies} == {str(kind) for kind in EntryKind}
    reasons = {body["details"]["reason"] for body in bodies if body["kind"] == "refused"}
    assert reasons == {str(reason) for reason in RefusalReason}
    assert {body["details"]["chosen_after"] for body in bodies if body["kind"] == "incident"} == {True, False}
    gaussian = [
        any(map(int, body["details"]["charge"]["gaussian"]))
        for body in bodies
        if body["kind"] == "voided" and "gaussian" in body["details"]["charge"]
    ]
    assert {True, False} == set(gaussian), "voids with an intact reserve, and with one that is not"
    charges = [body["details"].get("charge", {}) for body in bodies]
    for name in (
        "certain",
        "slack",
        "local",
        "late",
        "reserve",
        "kind",
        "claimed",
        "is_incident",
        "is_counted",
    ):
        assert any(charge.get(name) for charge in charges), name


@pytest.mark.slow
def test_the_printed_line_checks_the_signature(
    bundles: dict[str, bytes], example: ModuleType, tmp_path: Path
) -> None:
    remarks: list[str] = []
    (tmp_path / "bundle.zip").write_bytes(bundles["deltas"])
    assert list(example.problems(tmp_path / "bundle.zip", remarks)) == []
    line = remarks[-1].removeprefix("To check the signature: ")
    assert KEY.public_key_bytes.hex() in line
    for tampered in (False, True):
        asked = line.replace(" | xxd -r -p > message", "00 | xxd -r -p > message") if tampered else line
        done = subprocess.run(["sh", "-c", asked], cwd=tmp_path, capture_output=True, check=False)
        assert (done.returncode != 0) == tampered, done.stderr


NUMBERS = ("charge", "standing", "limits", "cost", "reason", "overspent")
# Limits, and which slots a round fits, are the accountant's: only that they suit each other follows.
ACCOUNTANTS = {("opened", "limits.certain"), ("opened", "limits.slack")}
ACCOUNTANTS |= {("admitted", "cost.fits"), ("budget_changed", "standing.limits.slack")}
CEILINGS = {("opened", f"limits.{level}.divergences") for level in ("refuse", "promise")}
CEILINGS |= {("opened", "limits.refuse.gaussian")}
CEILINGS |= {("budget_changed", f"standing.limits.refuse.{each}") for each in ("gaussian", "divergences")}


def changes(body: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], int, Change]]:
    """Yield every number of a body that follows, or is a limit, and how it is changed by one unit."""
    for path in leaves(body["details"]):
        is_of_cost = path[0] == "cost" and "fits" not in path  # the accountant's
        is_text = path[-1] == "rules" or (path[0] == "reason" and body["kind"] != "refused")
        value: Any = body["details"]
        for each in path:
            value = value[each]
        if path[0] not in NUMBERS or is_of_cost or is_text or value == {}:
            continue
        for step in (1, -1):
            yield path, step, replaced(path, partial(moved, step=step))


Change = Callable[[dict[str, Any]], None]


def replaced(path: tuple[Any, ...], other: Callable[[Any], Any]) -> Change:
    """Return what gives one field of the details another value."""

    def change(body: dict[str, Any]) -> None:
        place: Any = body["details"]
        for each in path[:-1]:
            place = place[each]
        place[path[-1]] = other(place[path[-1]])

    return change


def changed(data: bytes, place: int, change: Change) -> bytes:
    """Return a bundle in which one entry was changed, with digests and a signature made anew."""
    return forged(data, lambda _, body: change(body), signer=KEY, only=place)


def named(path: tuple[Any, ...]) -> str:
    return ".".join(each for each in path if isinstance(each, str))


def moved(value: Any, step: int) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str) and not value.isdigit():
        return "budget_exceeded" if value != "budget_exceeded" else "delta_account_exhausted"
    return str(int(value) + step) if isinstance(value, str) else value + step


@pytest.mark.slow
@pytest.mark.parametrize(
    "cohort", ["life", "given back", "deltas", "few", "plan", "both", "ceiling", "weeks"]
)
def test_each_number_changed_by_one_unit_is_found(
    bundles: dict[str, bytes], example: ModuleType, tmp_path: Path, cohort: str
) -> None:
    """Digests and signature are made anew. Entries whose numbers are those of others are asked once.

    The ledger is asked about larger limits, and about other numbers that are smaller. Limits that it proves
    with its numbers are larger by more than round-off.
    """
    made, path, seen, missed = bundles[cohort], tmp_path / "bundle.zip", set(), set()
    assert not is_found(forged(made, lambda *_: None, signer=KEY), cohort), "a number is all that is forged"
    assert found_in(example, forged(made, lambda *_: None, signer=KEY), path) == []
    for body in bodies_of(made):
        parts = frozenset(body["details"].get("charge", {}))
        for field, step, change in changes(body):
            case = (body["kind"], parts, field, step, body["details"].get("reason"))
            if case in seen:
                continue
            seen.add(case)

            data = changed(made, body["sequence"], change)
            if ("limits" in field) == (step > 0):
                is_proven = "limits" in field and body["kind"] in ("opened", "budget_changed")
                larger = replaced(field, more) if is_proven else change
                forgery = changed(made, body["sequence"], larger) if is_proven else data
                assert is_found(forgery, cohort), (body["sequence"], field)
            if not found_in(example, data, path):
                missed.add((body["kind"], named(field)))
    allowed = ACCOUNTANTS | CEILINGS if cohort == "ceiling" else ACCOUNTANTS
    assert missed <= allowed, missed - allowed
    assert len(seen) >= (6 if cohort == "weeks" else 80), "a record without a budget has few numbers"


def other_spending(body: dict[str, Any]) -> Iterator[tuple[str, Change]]:
    """Yield changes of what an entry says is spent or was requested, but for the bounds of a plan."""
    has_filters = body["details"].get("cost", {}).get("gaussian") is not None
    for place in ("spent", "requested"):
        said = body.get(place) or body["details"].get(place)
        for name in ("delta", "rounds", "epsilon_upper", "round_off", *(("truncation",) * has_filters)):
            is_bound = name not in ("delta", "rounds")
            if said is None or (is_bound and (not has_filters or said["epsilon_upper"] == math.inf)):
                continue

            def change(body: dict[str, Any], place: str = place, name: str = name) -> None:
                said = body[place] if place == "spent" else body["details"][place]
                said[name] += 1

            yield f"{place}.{name}", change


@pytest.mark.slow
@pytest.mark.parametrize("cohort", ["life", "given back", "deltas", "few", "plan", "both", "weeks"])
def test_what_is_said_to_be_spent_is_checked_but_for_its_bounds(
    bundles: dict[str, bytes], example: ModuleType, tmp_path: Path, cohort: str
) -> None:
    seen = set()
    for body in bodies_of(bundles[cohort]):
        for name, change in other_spending(body):
            if (body["kind"], name) not in seen:
                seen.add((body["kind"], name))
                data = changed(bundles[cohort], body["sequence"], change)
                found = found_in(example, data, tmp_path / "bundle.zip")
                assert any(f"entry {body['sequence']}:" in each for each in found), (body["kind"], name)
    assert len(seen) >= 4


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda body: body["details"].update(policy="plan"), "its policy has other rules"),
        (lambda body: body["details"].update(population=10), "more users than there are"),
    ],
)
def test_a_policy_of_other_rules_and_a_round_of_too_many_users_are_found(
    bundles: dict[str, bytes], example: ModuleType, tmp_path: Path, change: Change, found: str
) -> None:
    data = changed(bundles["life"], 1, change)
    assert found in "\n".join(found_in(example, data, tmp_path / "bundle.zip"))


def admitted_instead(body: dict[str, Any]) -> None:
    body["kind"] = "admitted"
    for name in ("reason", "message", "refused_by"):
        body["details"].pop(name, None)


def refused_instead(body: dict[str, Any]) -> None:
    body["kind"] = "refused"
    body["details"] |= {"reason": "budget_exceeded", "message": "It would be too much."}


@pytest.mark.slow
@pytest.mark.parametrize(
    "cohort", ["life", "given back", "deltas", "few", "plan", "both", "ceiling", "weeks"]
)
def test_each_outcome_turned_round_is_found(
    bundles: dict[str, bytes], example: ModuleType, tmp_path: Path, cohort: str
) -> None:
    turned = {"admitted": refused_instead, "refused": admitted_instead}
    decided = [body for body in bodies_of(bundles[cohort]) if body["kind"] in turned]
    for body in decided:
        sequence = body["sequence"]
        data = changed(bundles[cohort], sequence, turned[body["kind"]])
        found = found_in(example, data, tmp_path / "bundle.zip")
        assert is_found(data, cohort), sequence
        assert any(f"entry {sequence}:" in each for each in found), (sequence, found)
    assert decided


@pytest.mark.slow
@pytest.mark.parametrize("member", ["quota", "period", "audience"])
def test_a_round_is_admitted_by_all_its_budgets_or_by_none(
    bundles: dict[str, bytes], example: ModuleType, tmp_path: Path, member: str
) -> None:
    """One chain is put back to before a round that the others admitted: it follows by itself."""
    data = bundles["all"]
    names = [each["cohort"] for each in json.loads(members_of(data)["manifest.json"])["cohorts"]]
    cohort = {
        "quota": "phones@team=ads",
        "period": f"weeks@{datetime.now(UTC):%G-W%V}",
        "audience": "without",
    }
    name = cohort[member]
    number = f"chains/{names.index(name) + 1:06}.txt"
    members = members_of(data)
    members[number] = b"".join(lines_of(members, number)[:1])
    heads = json.loads(members["heads.json"])
    (head,) = (each for each in heads["heads"] if each["cohort"] == name)
    head |= {"sequence": 1, "digest": members[number].split(b" ")[2].decode()}
    members["heads.json"] = json.dumps(heads).encode()
    found = found_in(example, repacked(members, tuple(names)), tmp_path / "bundle.zip")
    assert any(f"{name} say otherwise" in each or f"of {name} and" in each for each in found), found
    assert all("say otherwise" in each for each in found), found


class History:
    """The machine's postings for events that are drawn with small numbers, as bodies of entries."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)  # noqa: S311 - the same each time
        self.filtered, per_user = seed % 4 != 0, draw.choice([2, 3]) if seed % 4 == 1 else None
        reserves = tuple(sorted({0, draw.randint(1, 300), draw.randint(300, 900)})) if self.filtered else ()
        orders, slots = ("2", "3") if self.filtered else (), () if seed % 4 in (1, 2) else (2, 3, 1)
        shares = (1,) * ((3 + len(orders) if self.filtered else 0) + bool(slots))
        fixed: dict[str, Any] = {"reserves": reserves, "orders": orders, "slots": slots}
        fixed |= {"rounds_per_user": per_user, "slots_epsilon": 10**30 // 2}
        self.rules = Rules(name="a", cohort="a", delta=10, shares=shares, opened_at=0, **fixed)
        first, most = self.level(10), 40 * self.filtered
        sliding = first.gaussian if self.filtered and per_user is None else None
        self.opened = Limits(refuse=first, promise=first, certain=most, slack=most, sliding=sliding)
        self.state = machine.new_state(self.rules, self.opened)
        stated: dict[str, Any] = {"kind": "life", "delta": 1e-6}
        if self.filtered:
            gaussian = {"reserves": [each * 1e-30 * (1 - 2.0**-48) for each in reserves]}  # rounded up
            stated["filters"] = {"gaussian": gaussian, "renyi": [{}] * len(orders)}
        if slots:
            stated["slots"] = {"epsilon_upper": 0.5, "kinds": [{"count": each} for each in slots]}
        of_users: dict[str, Any] = {} if per_user is None else {"rounds_per_user": per_user}
        self.digest = rules_digest(stated | of_users)
        self.bodies: list[dict[str, Any]] = []
        self.epsilon, self.charges, self.closed, self.voided = (
            1.0,
            dict[str, Charge](),
            set[str](),
            set[str](),
        )
        self.write(
            "opened",
            policy="adaptive" if self.filtered else "plan",
            rules=stated | of_users,
            limits=spelled(self.opened),
            **of_users,
        )

    def level(self, tenths: int) -> Level:
        moments = tuple(tenths * self.draw.randint(30, 60) * self.filtered for _ in (1, 2))
        variance = 200 * tenths * self.filtered
        return Level(epsilon=tenths * 10**29, gaussian=variance, divergences=moments if self.filtered else ())

    def cost(self) -> Cost:
        draw, places = self.draw, range(len(self.rules.reserves))
        variance = draw.choice([draw.randint(0, 60), draw.randint(60, 300)])
        accounts = {
            name: draw.randint(0, 9) * self.filtered * (draw.random() < 0.3) for name in ("certain", "slack")
        }
        return Cost(
            gaussian=tuple(variance - draw.randint(0, variance) * place // 2 for place in places),
            divergences=tuple(draw.randint(0, 100) for _ in self.rules.orders),
            fits=tuple(kind for kind in range(len(self.rules.slots)) if draw.random() < 0.5),
            **accounts,
        )

    def write(self, kind: str, name: str | None = None, **details: Any) -> None:
        standing = {"rules": self.digest, "total": spelled(self.state.total)}
        if self.state.limits != self.opened:
            standing["limits"] = spelled(self.state.limits)
        common = {"sequence": len(self.bodies) + 1, "recorded_at": "2026", "delta_budget": 1e-6}
        named = {"kind": kind, "round_id": name, "epsilon_budget": self.epsilon}
        self.bodies.append({**common, **named, "details": {**details, "standing": standing}})

    def ask(self, name: str) -> None:
        told: dict[str, Any] = {"request": {"cohort": "a"}}
        if self.state.is_overspent:
            self.write("refused", name, reason="cohort_overspent", **told)
            return
        cost = self.cost()
        (posting,) = machine.decide({"a": self.state}, Request(audience=("a",)), {"a": cost}).postings
        assert posting.charge is not None
        self.state = dataclasses.replace(self.state, total=posting.total)
        told |= {"cost": spelled(cost), "charge": spelled(posting.charge)}
        if posting.reasons:
            is_exhausted = self.filtered and "filters" not in posting.reasons
            told["reason"] = "delta_account_exhausted" if is_exhausted else "budget_exceeded"
            told["requested"] = {"epsilon_upper": 2.0}
        else:
            self.charges[name] = posting.charge
        self.write("refused" if posting.reasons else "admitted", name, **told)

    def change(self) -> None:
        wanted, promised = self.level(self.draw.randint(3, 20)), self.state.limits.promise
        is_raised = wanted.epsilon > promised.epsilon
        combine = max if is_raised else min
        pairs = zip(wanted.divergences, promised.divergences, strict=True)
        moments = tuple(combine(pair) for pair in pairs)
        variance = combine(wanted.gaussian, promised.gaussian)
        promise = dataclasses.replace(wanted, gaussian=variance, divergences=moments)
        refuse, slack = (wanted, self.draw.randint(20, 40) * self.filtered) if is_raised else (promise, None)
        changed = machine.change_budget(self.state, refuse, promise, slack=slack)
        if not isinstance(changed, machine.Unchanged):
            assert changed.limits is not None
            self.state = dataclasses.replace(self.state, limits=changed.limits)
            before, self.epsilon = self.epsilon, wanted.epsilon / 10**30
            self.write("budget_changed", epsilon_before=before)

    def restate(self, cause: Cause, name: str, kind: str) -> None:
        is_told, is_voided = cause is Cause.INCIDENT, cause is Cause.VOID
        is_early, cost = is_told and self.draw.random() < 0.03, self.cost()
        described = Described.NOTHING if is_voided else Described.STATED
        charges = {"a": self.charges[name]} if name in self.charges else {}
        costs = {"a": cost} if described is Described.STATED else {}
        before = Round(charges=charges, is_voided=is_told and bool(charges), released_after=int(not is_early))
        (posting,) = machine.restate({"a": self.state}, before, described, cause, costs)
        assert posting.charge is not None
        self.charges[name], is_overspent = posting.charge, posting.is_overspent
        self.state = dataclasses.replace(self.state, total=posting.total, is_overspent=is_overspent)
        told: dict[str, Any] = {"charge": spelled(posting.charge)}
        told |= {"cost": spelled(cost)} if costs and not is_early else {}
        told |= {} if is_voided else {"overspent": is_overspent}
        if is_told:
            told |= {"chosen_after": is_early, "released": {"after": "2026" if is_early else "2027"}}
        self.write(kind, name, **told)

    def one_more(self) -> None:
        """Draw one event."""
        number = len(self.bodies)
        event = self.draw.choice(["ask"] * 6 + ["end"] * 3 + ["correct", "tell", "change"])
        if event == "ask":
            self.ask(f"r{number}")
        elif event == "change":
            self.change()
        elif event == "tell":
            name = self.draw.choice([f"i{number}", *sorted(self.voided)])
            self.voided.discard(name)
            self.closed.add(name)
            self.restate(Cause.INCIDENT, name, "incident")
        elif event == "correct" and self.charges.keys() - self.voided:
            name = self.draw.choice(sorted(self.charges.keys() - self.voided))
            self.restate(Cause.CORRECT, name, "corrected")
        elif event == "end" and self.charges.keys() - self.closed:
            name = self.draw.choice(sorted(self.charges.keys() - self.closed))
            self.closed.add(name)
            if self.draw.random() < 0.5:
                self.voided.add(name)
                self.restate(Cause.VOID, name, "voided")
            else:
                self.restate(Cause.SETTLE, name, "settled")


@pytest.mark.slow
def test_the_machine_and_the_example_decide_drawn_histories_alike(example: ModuleType) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(200):
        drawn = History(seed)
        for _ in range(60):
            drawn.one_more()
        bodies = json.loads(canonical.encode(drawn.bodies))  # with floats as in a bundle
        assert list(example.decided_again(bodies, "2026", None)) == [], seed
        kinds.update(body["kind"] for body in bodies)
    assert set(kinds) == {str(kind) for kind in EntryKind} - {"closed", "frozen"}
    assert min(kinds.values()) >= 200


def test_at_every_limit_the_machine_and_the_example_agree(example: ModuleType) -> None:
    """Numbers at, and one unit beside, what is allowed."""
    found: Counter[object] = Counter()
    for seed in range(2, 400, 4):  # with a sliding limit, and no slots
        drawn = History(seed)
        state = drawn.state

        def near(most: int, draw: random.Random = drawn.draw) -> int:
            return max(0, most + draw.randint(-1, 1))

        rules, limits, level = state.rules, state.limits, state.limits.refuse
        budget = example.Budget(json.loads(canonical.encode(drawn.bodies[0])), "2026", None)
        limit = limits.sliding
        assert limit is not None
        for _ in range(30):
            variances = [near(level.gaussian - each) + drawn.draw.randint(0, 1) for each in rules.reserves]
            moments = [near(each) + drawn.draw.randint(0, 1) for each in level.divergences]
            accounts = [near(limits.certain), near(limits.slack)]
            returned = drawn.draw.randint(0, 9)
            slid: dict[str, Any] = {
                "sliding": near(limit + returned),
                "returned": returned,
                "late": near(limit // 32),
            }
            names: dict[str, Any] = dict(zip(("certain", "slack"), accounts, strict=True))
            total = Total(gaussian=tuple(variances), divergences=tuple(moments), **names, **slid)
            expected = machine.standing(rules, limits, total, level).promised
            counters = {**budget.total, "amounts": [*variances, *moments, *accounts, 0], **slid}
            assert budget.holds(counters, "refuse") == bool(expected), (seed, total)
            costs = [1_030 - 3 * at + drawn.draw.randint(0, 2) for at in range(len(rules.reserves))]
            place = drawn.draw.randrange(len(costs))
            held = near(limit - costs[place] - machine_filters.kept_free(limit, rules.reserves[place]))
            charge: dict[str, Any] = {"amounts": [*costs, *moments, 0, 0, 0]}
            budget.total |= {"sliding": held + returned, "returned": returned}
            budget.slide(charge, 0)
            sliding = machine_filters.sliding_charge(rules, limit, held, costs)
            assert (charge["sliding"], charge["reserve"]) == sliding, (seed, held, costs)
            found.update([f"holds: {bool(expected)}", f"place {sliding[1]}"])
    assert len(found) == 5, found
    assert min(found.values()) > 20, found
