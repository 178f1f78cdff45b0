"""Every field of every entry, changed by itself: the verdict is the one that docs/bundle-format.md lists."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shuffle_ledger.accounting import Accountant, ShuffledRound, parse_randomizer
from shuffle_ledger.ledger.decisions import (
    admit,
    change_budget,
    close_cohort,
    correct,
    freezing,
    open_cohort,
    record_incident,
    register,
    settle,
    void,
)
from shuffle_ledger.ledger.evidence.bundle import BundleMade, make_bundle
from shuffle_ledger.ledger.evidence.bundle_verifier import verify_bundle
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.checkpoint import CheckpointHead
from shuffle_ledger.ledger.values.entries import EntryKind
from shuffle_ledger.ledger.values.requests import ReleaseTimes, RoundRequest
from shuffle_ledger.ledger.values.signing import SigningKey
from tests.conftest import sqlite_url
from tests.ledger.test_bundles import altered, forged, leaves, lines_of, members_of

PAGE = Path(__file__).parents[2] / "docs" / "bundle-format.md"
CHAIN = "chains/000001.txt"
AUDITOR = Accountant()
database_url = sqlite_url  # an entry has the same bytes in every database
ZEROS = "0" * 64


class Row(NamedTuple):
    """A row of the page's table."""

    policies: frozenset[str]
    kinds: frozenset[str]
    field: str
    verdict: str

    def fits(self, policy: str, kind: str, field: str) -> bool:
        known = {"any", policy} & self.policies and {"any", kind} & self.kinds
        return bool(known) and (field == self.field or field.startswith(self.field + "."))


def table() -> list[Row]:
    found = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| `([^|`]+)` \| ([^|]+) \| [^|]+ \|$", PAGE.read_text(), re.M
    )
    rows = [Row(frozenset(p.split(", ")), frozenset(k.split(", ")), f, v) for p, k, f, v in found]
    assert len(rows) > 40
    assert {row.verdict for row in rows} == {"found", "found if unsafe", "not found"}
    return rows


ROWS = table()


def verdict(policy: str, kind: str, field: str) -> str:
    fitting = [row for row in ROWS if row.fits(policy, kind, field)]
    assert fitting, f"{field} of {kind} entries, policy {policy}, is not in docs/bundle-format.md"
    best = max(fitting, key=lambda row: (len(row.field), "any" not in row.policies))
    return best.verdict


def krr(epsilon0: float, reports: int) -> ShuffledRound:
    return ShuffledRound(
        randomizer=parse_randomizer({"kind": "krr", "k": 10, "epsilon0": epsilon0}), reports=reports
    )


KEY = SigningKey.generate()


@pytest.fixture(params=["adaptive", "plan"])
def lived(request: pytest.FixtureRequest, store: Store, accountant: Accountant) -> tuple[str, BundleMade]:
    """Return a policy, and the evidence of a cohort with it that has entries of every kind."""
    policy: str = request.param
    plan = {krr(1.0, 20_000): 1, krr(1.0, 15_000): 1, krr(0.5, 10_000): 1} if policy == "plan" else None
    later = {
        krr(1.0, 12_000): 1,
        krr(0.9, 9_000): 1,
    }  # for corrections and incidents, so that each kind occurs once
    plan = None if plan is None else plan | later
    opened: dict[str, Any] = {"population": 10**6, "epsilon": 1.0, "delta": 1e-9, "policy": policy}
    open_cohort(store, name="phones", actor="tester", plan=plan, accountant=accountant, **opened)

    def decide(name: str, epsilon0: float, reports: int) -> None:
        described = {"round": krr(epsilon0, reports), "collected_on": date(2026, 1, 1), "use_case": "emoji"}
        register(store, RoundRequest(round_id=name, cohort="phones", **described), actor="tester")  # type: ignore[arg-type]  # as it says
        admit(store, accountant, name)

    decide("a", 1.0, 20_000)
    decide("b", 0.5, 10_000)
    decide("c", 8.0, 30)
    settle(store, accountant, "a", reports=17_000, actor="tester")
    void(store, accountant, "b", reason="a bug", actor="tester")
    decide("d", 0.5, 11_000)
    correct(store, accountant, "a", {"reports": 12_500}, reason="counted twice", actor="eve")
    now = datetime.now(UTC) - timedelta(milliseconds=2)  # some clocks count no less
    record_incident(
        store,
        accountant,
        "phones",
        round_id="x",
        described=krr(0.9, 9_000),
        reason="a script",
        actor="eve",
        released=ReleaseTimes(after=now - timedelta(microseconds=1), before=now),
    )
    void(store, accountant, "d", reason="a bug", actor="tester")
    change_budget(store, "phones", epsilon=1.5, reason="as agreed", actor="owner")
    close_cohort(store, "phones", reason="not needed", actor="owner")
    view = store.view("phones")
    head = CheckpointHead(cohort="phones", sequence=99, digest_hex=ZEROS)
    said = {"reason": "the disk broke", "checkpoint": ZEROS, "nothing_later": None}
    store.append(view, freezing.freezing(store, view, head, said, actor="owner"))
    decide("e", 0.5, 12_000)
    return policy, make_bundle(store, ["phones"], signing_key=KEY)


def moved(moment: str, days: int) -> str:
    return (datetime.fromisoformat(moment) + timedelta(days=days)).isoformat(timespec="microseconds")


def scaled(body: dict[str, Any], path: tuple[Any, ...]) -> None:
    """Make both ends of an interval too small for an upper end, too large for a lower one."""
    place = body["spent"] if path[0] == "spent" else body["details"]["requested"]
    factor = 0.5 if path[-1] == "epsilon_upper" else 2.0
    for name in ("epsilon_upper", "epsilon_lower"):
        place[name] = place[name] * factor or 0.1


# Other values that a ledger could have written, where any change of the field must be one of those.
OTHERWISE = {
    "use_case": "emoji",
    "analysis": "strong-adversary",
    "delta0": 1e-12,
    "honest_fraction": 0.5,
    "participation": 0.5,
    "sampled_from": 20_000,
}


def change(body: dict[str, Any], path: tuple[Any, ...]) -> None:
    """Change one field, to another value that a ledger could have written where there is one."""
    field = named(path)
    place: Any = body
    for name in path[:-1]:
        place = place[name]
    value = place[path[-1]]
    if field == "recorded_at":
        place[path[-1]] = moved(value, 1 if body["kind"] == "opened" else -1)
    elif field in ("details.registered_at", "details.released.after", "details.released.before"):
        place[path[-1]] = moved(value, 1)
    elif path[-1] in ("epsilon_upper", "epsilon_lower") and path[-2] in ("spent", "requested"):
        scaled(body, path)
    elif path[-1] in ("privacy_loss", "checkpoint", "digest"):
        place[path[-1]] = "1" * 64
    elif field == "details.request.collected_on":
        place[path[-1]] = "2026-01-02"
    elif body["kind"] == "incident" and field.startswith("details.request") and path[-1] in OTHERWISE:
        place[path[-1]] = OTHERWISE[path[-1]]
    elif path[-1] in ("reports", "k"):
        place[path[-1]] = value // 2
    else:
        place[path[-1]] = more(value) if is_amount(value) else altered(value)


def is_amount(value: Any) -> bool:
    """Whether this is a number of the machine's units."""
    return isinstance(value, str) and value.isdigit()


def more(value: str) -> str:
    """A larger number of units, by more than what another computer's round-off may be."""
    return str(int(value) + 1 + (int(value) >> 16))


def change_all(body: dict[str, Any], paths: Sequence[tuple[Any, ...]]) -> None:
    for path in paths:
        change(body, path)


def named(path: tuple[Any, ...]) -> str:
    return ".".join(name for name in path if isinstance(name, str))


def asked(made: BundleMade) -> Iterator[tuple[int, str, tuple[Any, ...]]]:
    """Yield an entry, its kind, and one path to each of the fields of such entries."""
    seen = set()
    for number, line in enumerate(lines_of(members_of(made.data), CHAIN), start=1):
        body = canonical.decode(line.split(b" ", 3)[3].rstrip(b"\n"))
        for path in leaves(body):
            is_open = path == ("details", "privacy_loss") and body["details"]["privacy_loss"] is None
            if (body["kind"], named(path)) not in seen and not is_open:
                seen.add((body["kind"], named(path)))
                yield number, body["kind"], path


def is_found(made: BundleMade, at: int, attack: Callable[[dict[str, Any]], None]) -> bool:
    data = forged(made.data, lambda _, body: attack(body), signer=KEY, only=at)
    for numbers in ("none", "all"):
        report = verify_bundle(data, AUDITOR, numbers=numbers)
        if {each.sequence for each in report.findings} & {at, at + 1}:
            return True
    return False


@pytest.mark.slow
def test_each_field_has_the_verdict_that_is_listed(lived: tuple[str, BundleMade]) -> None:
    policy, made = lived
    assert verify_bundle(made.data, AUDITOR, numbers="all").ok
    wrong: list[tuple[int, str, str]] = []
    quiet: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    kinds = set()
    for at, kind, path in asked(made):
        kinds.add(kind)
        if verdict(policy, kind, named(path)) == "not found":
            quiet[at].append(path)
        elif not is_found(made, at, partial(change, path=path)):
            wrong.append((at, "missed", named(path)))
    for at, paths in quiet.items():
        if is_found(made, at, partial(change_all, paths=paths)):
            wrong += [
                (at, "found", named(one)) for one in paths if is_found(made, at, partial(change, path=one))
            ]
    assert wrong == [], wrong
    assert kinds == {str(kind) for kind in EntryKind}


def mappings(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where every mapping in a body is."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield path
    for name, each in inner:
        yield from mappings(each, (*path, name))


@pytest.mark.slow
def test_a_field_too_many_or_too_few_is_found_at_every_level(lived: tuple[str, BundleMade]) -> None:
    _, made = lived
    missed, seen = [], set()
    for number, line in enumerate(lines_of(members_of(made.data), CHAIN), start=1):
        body = canonical.decode(line.split(b" ", 3)[3].rstrip(b"\n"))
        for path in mappings(body):
            for name in ("more", *(body if path == () else at_path(body, path))):
                if (body["kind"], named((*path, name))) in seen:
                    continue
                seen.add((body["kind"], named((*path, name))))

                def attack(body: dict[str, Any], path: tuple[Any, ...] = path, name: str = name) -> None:
                    place = at_path(body, path)
                    if name == "more":
                        place[name] = 1
                    else:
                        del place[name]

                if name != "cohort" and not is_found(made, number, attack):
                    missed.append((number, path, name))
    assert missed == []


def at_path(body: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        body = body[name]
    return body
