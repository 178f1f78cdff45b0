"""`examples/verify_bundle.py`, written from docs/bundle-format.md, decides every entry as the ledger did; and
of any number that its owner forged, the ledger's own verification finds the change, too."""

from __future__ import annotations

import dataclasses
import importlib.util
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

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger import machine
from shuffle_ledger.ledger.decisions import (
    admit,
    change_budget,
    close_cohort,
    freezing,
    register,
    set_quota,
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
from shuffle_ledger.ledger.values.checkpoint import CheckpointHead
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import (
    Admitted,
    Outcome,
    RefusalReason,
    RoundRequest,
)
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.values.windows import Window
from tests.ledger.desk import AnyDesk
from tests.ledger.test_bundles import EXAMPLE, forged, leaves, lines_of, members_of, repacked
from tests.ledger.test_every_field import more
from tests.ledger.test_windows import _shift, a_monday

KEY = SigningKey.generate()
AUDITOR = Accountant()  # another one than the ledger's
CHAIN = "chains/000001.txt"
WEEK = Window(unit="week", epsilon=0.2, delta=1e-7)
TWO_DAYS = Window(unit="day", sliding=2, epsilon=0.25, delta=1e-7, local_budget=5.0)
DAY = timedelta(days=1)


def krr(epsilon0: float, reports: int, **more: Any) -> ShuffledRound:
    randomizer = parse_randomizer({"kind": "krr", "k": 10, "epsilon0": epsilon0})
    return ShuffledRound(randomizer=randomizer, reports=reports, **more)


REGULAR, IRREGULAR = krr(2.0, 20_000), krr(4.0, 10_000, sampled_from=100_000)
RARE = krr(4.0, 500, sampled_from=50_000)  # filters bound it badly


class Desk(AnyDesk):
    """A ledger in which everything happens that can happen to a budget."""

    def ask(self, name: str, described: ShuffledRound, cohort: str, **more: Any) -> Outcome:
        return self.decide(RoundRequest(round_id=name, cohort=cohort, round=described, **more))

    def change(self, cohort: str, *budgets: float) -> None:
        for epsilon in budgets:
            change_budget(self.store, cohort, epsilon=epsilon, reason="so", actor="bob")

    def tell(self, name: str, described: ShuffledRound, cohort: str, *, late: bool = True) -> None:
        now = datetime.now(UTC) - timedelta(milliseconds=2)  # some clocks count no less
        times: dict[str, Any] = {"after": now - timedelta(microseconds=1), "before": now} if late else {}
        self.incident(name, described, cohort, **times)

    def live_with_filters(self) -> None:
        """Fill the sliding total, end rounds in each way, and move the budget."""
        self.open("life", epsilon=0.2)
        count = 1
        while isinstance(self.ask(f"l{count}", REGULAR if count % 2 else IRREGULAR, "life"), Admitted):
            count += 1
        last = count - 1 if count % 2 else count - 2  # the last irregular one
        self.void("l2")  # its reserve was used since
        self.tell("l2", IRREGULAR, "life")
        self.correct("l2", reports=9_000)
        self.void(f"l{last}")  # it was charged without a reserve
        self.settle("l4", 9_950)
        self.correct("l6", reports=9_800)
        self.void("l6")  # it was corrected, and gives nothing back
        for reports in (9_700, 9_700, 20_000):
            self.correct("l4", reports=reports)
        self.ask("too late", REGULAR, "life")
        self.change("life", 0.6, 0.5, 0.7)
        self.tell("early", REGULAR, "life", late=False)
        self.open("given back", epsilon=0.5)
        for name in ("g1", "g2", "g3"):
            self.ask(name, IRREGULAR, "given back")
        self.void("g1")
        self.tell("g1", REGULAR, "given back")
        self.change("given back", 0.4, 1.0, 0.3, 0.5)
        freeze(self.store, "given back")
        self.ask("g4", REGULAR, "given back")
        self.correct("g2", reports=9_000)
        self.tell("g5", REGULAR, "given back")
        self.open("deltas", local_budget=2.0)
        for name in ("d1", "d2", "d3"):
            self.ask(name, parsed("generic(epsilon0=0.5)", 20_000, delta0=3e-13), "deltas")
        self.ask("d4", parsed("declared(epsilon=0.1, delta=3e-9)", 10_000), "deltas")
        self.ask("d5", parsed("declared(epsilon=0.1, delta=1e-3)", 10_000), "deltas")
        self.ask("d6", REGULAR, "deltas")
        self.ask("d7", parsed("table(rows=[[1, 0], [0, 1]])", 10_000), "deltas")
        self.open("few", epsilon=0.4, rounds_per_user=2)
        for name in ("f1", "f2", "f3"):
            self.ask(name, krr(2.0, 50_000), "few")
        self.ask("f4", krr(5.0, 50), "few")
        self.void("f1")
        self.tell("f1", REGULAR, "few")
        self.correct("f2", reports=40_000)
        self.settle("f3", 45_000)
        close_cohort(self.store, "few", reason="so", actor="bob")
        self.ask("f5", REGULAR, "few")
        self.correct("f3", reports=44_000)

    def live_with_slots(self) -> None:
        """Claim slots of a plan alone, and of a plan beside filters."""
        plan = {krr(1.0, 20_000): 2, krr(1.0, 15_000): 1, krr(0.5, 10_000): 1}
        self.open("plan", policy="plan", plan=plan, ceiling=1.0)
        for name in ("p1", "p2", "p3", "p4"):
            self.ask(name, krr(1.0, 20_000), "plan")
        self.change("plan", 0.01)
        self.ask("p5", krr(0.5, 10_000), "plan")  # it has a slot, and the slots cost more than the budget
        self.change("plan", 1.0)
        self.settle("p1", 16_000)
        self.void("p2")
        self.tell("p2", krr(0.5, 10_000), "plan")
        self.correct("p1", reports=3_000)
        self.open("both", plan={RARE: 6, krr(1.0, 10_000): 2, krr(1.0, 9_000): 1}, epsilon=0.13)
        for number in range(3):
            self.ask(f"b{number}", krr(1.0, 10_000), "both")
        for number in range(8):
            self.ask(f"r{number}", RARE, "both")
        self.void("b2")
        self.tell("b2", krr(1.0, 9_000), "both")
        self.settle("b0", 9_500)
        self.correct("r1", reports=400)
        self.change("both", 0.2)

    def live_with_others(self) -> None:
        """Charge rounds to cohorts together, to periods and to a quota."""
        self.open("phones", windows=(WEEK, TWO_DAYS), local_budget=9.0)
        set_quota(self.store, "phones", team="ads", epsilon=0.3, reason="so", actor="ada")
        monday = a_monday()
        self.ask("now", krr(2.0, 10_000), "phones", team="ads")
        for number in range(6):
            self.ask(f"w{number}", krr(2.0, 10_000), "phones", team="ads", collected_on=monday + number * DAY)
        self.settle("now", 9_000)
        self.void("w1")
        for epsilon in (0.1, 0.3):
            quota: dict[str, Any] = {"team": "ads", "epsilon": epsilon, "reason": "so", "actor": "ada"}
            set_quota(self.store, "phones", **quota)
            self.ask(f"q{epsilon}", krr(2.0, 10_000), "phones", team="ads", collected_on=monday + 30 * DAY)
        self.open("weeks", windows=(WEEK,), epsilon=None, delta=None)
        for name in ("x1", "x2"):
            self.ask(name, krr(2.0, 10_000), "weeks")
        self.correct("x1", reports=5_000)
        self.open("ceiling", ceiling=2.0)
        self.open("without")
        for name, reports in (("j1", 150_000), ("j2", 10), ("j3", 120_000)):
            self.ask(name, krr(2.0, reports), "ceiling", audience=("ceiling", "without"))
        self.settle("j1", 140_000)
        self.void("j3")
        self.change("ceiling", 1.5, 0.9, 1.0)
        today = datetime.now(UTC).date()
        late = RoundRequest(round_id="w9", cohort="phones", round=krr(2.0, 9_000), collected_on=today)
        register(self.store, late, actor="ada")
        with pytest.MonkeyPatch.context() as patch:
            _shift(patch, self.store, 3 * DAY)
            admit(self.store, self.accountant, "w9")


def parsed(randomizer: str, reports: int, **more: Any) -> ShuffledRound:
    return ShuffledRound(randomizer=parse_randomizer(randomizer), reports=reports, **more)


def freeze(store: Store, cohort: str) -> None:
    """Make an entry that accepts a loss of later ones."""
    view, zeros = store.view(cohort), "0" * 64
    said = {"reason": "the disk broke", "checkpoint": zeros, "nothing_later": None}
    head = CheckpointHead(cohort=cohort, sequence=99, digest_hex=zeros)
    store.append(view, freezing.freezing(store, view, head, said, actor="owner"))


@pytest.fixture(scope="module")
def bundles(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, accountant: Accountant
) -> dict[str, bytes]:
    """Return a bundle of each cohort by itself, with its periods and quotas, and one of all, named "all"."""
    path = tmp_path_factory.mktemp("lived") / "ledger.db"
    shutil.copy(sqlite_template, path)
    with Store.connect(f"sqlite:///{path}") as store:
        desk = Desk(store, accountant)
        desk.live_with_filters()
        desk.live_with_slots()
        desk.live_with_others()
        names = store.cohort_names()
        made = {name: make_bundle(store, [name], signing_key=KEY).data for name in names}
        return made | {"all": make_bundle(store, names, signing_key=KEY).data}


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("decided_independently", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
