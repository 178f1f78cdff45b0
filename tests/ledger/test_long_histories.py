"""What operators and readers ask does not read more rows where there are more cohorts, or longer chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, insert, text

from shuffle_ledger.accounting import NUMERICAL_POLICY, Accountant
from shuffle_ledger.ledger.decisions import set_quota
from shuffle_ledger.ledger.health import verify_oldest
from shuffle_ledger.ledger.policies import registry
from shuffle_ledger.ledger.reports import round_lists
from shuffle_ledger.ledger.reports.round_lists import RoundFilter, list_rounds
from shuffle_ledger.ledger.storage import engine
from shuffle_ledger.ledger.storage.census import broken_chains, census, verified_before
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.storage.tables import cohorts, unverified, verifications
from shuffle_ledger.ledger.values import canonical
from shuffle_ledger.ledger.values.quotas import Quota
from shuffle_ledger.ledger.values.requests import RoundRequest, cohort_from_opening
from tests.ledger.clerk import open_as_usual
from tests.ledger.test_by_key import counted

COHORTS = 400
PART: dict[str, Any] = {
    "population": 10**6,
    "delta_budget": 1e-9,
    "policy": "adaptive",
    "opened_at": datetime(2026, 1, 5, tzinfo=UTC),
}
ROUNDS = 300
FEW = 60  # rows: less than any of the numbers above
LIMIT = 5
WEEK_SECONDS = 7 * 86_400.0
_READ = (
    "SELECT relname, (max(seq_tup_read) + coalesce(sum(idx_tup_read), 0))::bigint"
    " FROM pg_stat_user_tables LEFT JOIN (SELECT relid, idx_tup_read FROM pg_stat_user_indexes) AS indexes"
    " USING (relid) GROUP BY relname"
)

MakeRequest = Callable[..., RoundRequest]
Question = Callable[[Store], object]


def name_of(number: int) -> str:
    return f"cohort {number:04}"


def open_many(store: Store, count: int) -> None:
    """Open cohorts in one transaction."""
    made = [
        cohort_from_opening(
            name=name_of(number), population=10**6, epsilon=1.0, delta=1e-9, policy="adaptive"
        )
        for number in range(count)
    ]
    rules = [(cohort, registry.policy_for(cohort).opening()) for cohort in made]
    store.open_cohorts(rules, actor="tester", numerical_policy=NUMERICAL_POLICY)


def note_verified(store: Store, names: list[str], at: datetime, **others: object) -> None:
    """Write what a verification would have found."""
    found = {
        "verified_at": at,
        "head_sequence": 1,
        "head_digest": "",
        "numbers_checked": 0,
    }
    with store.engine.begin() as connection:
        for name in names:
            connection.execute(insert(verifications).values(cohort=name, **{**found, **others}))


@pytest.fixture(scope="module")
def large(postgresql_databases: Any, make_request: MakeRequest) -> Iterator[str]:
    """Yield a ledger's address: many cohorts, all but the last verified, and many rounds of the first.

    The questions share it: they change nothing that another one counts.
    """
    name = postgresql_databases.copy()
    url = postgresql_databases.url(name)
    now = datetime.now(UTC)
    with Store.connect(url) as store:
        open_many(store, COHORTS)
        note_verified(store, [name_of(number) for number in range(COHORTS - 1)], now)
        # Parts of the second cohort, and one of each of the others.
        teams = [
            Quota(cohort=name_of(1 if number % 2 else number), team=f"team {number}")
            for number in range(COHORTS)
        ]
        with store.engine.begin() as connection:
            for team in teams:
                row = {"quota": canonical.encode(team.to_mapping()), "name": team.name}
                connection.execute(insert(cohorts).values(**row, **PART))
        note_verified(store, [team.name for team in teams], now)
        requests = [make_request(f"round {number:04}", cohort=name_of(0)) for number in range(ROUNDS)]
        between = [make_request(cohort=name_of(1)) for _ in range(ROUNDS)]
        for request in [*requests[:201], *between, *requests[201:]]:
            store.insert_round(request, actor="tester")
        with store.engine.connect() as connection:
            driver: Any = connection.connection.driver_connection  # which begins no transaction
            driver.execute("VACUUM (ANALYZE)")  # else rows that were deleted are read, too
    yield url
    postgresql_databases.drop(name)


def of_rounds(store: Store) -> object:
    wanted = RoundFilter(cohorts=(name_of(0),))
    page = list_rounds(store, wanted, after="round 0200", limit=LIMIT)
    assert [each.round_id for each in page.rounds] == [f"round {number:04}" for number in range(201, 206)]
    return page


def of_rare_rounds(store: Store) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_lists, "SCANNED_MAX", 2 * LIMIT)
        page = list_rounds(store, RoundFilter(cohorts=(name_of(0),), outcome="voided"), limit=LIMIT)
    assert (page.rounds, page.after) == ((), f"round {2 * LIMIT - 1:04}")
    return page


def of_heads(store: Store) -> object:
    assert [head.cohort for head in store.heads(after=name_of(300), limit=1)] == [name_of(301)]
    return store.heads(limit=LIMIT)


def of_cohorts(store: Store) -> object:
    assert [each.name for each in store.cohorts(after=name_of(300), limit=1)] == [name_of(301)]
    found = [each.name for each in store.cohorts(parts=False, limit=LIMIT)]
    assert found == [name_of(number) for number in range(LIMIT)]
    return found


def of_quotas(store: Store) -> object:
    assert [each.team for each in store.quotas_of(name_of(8))] == ["team 8"]
    return store.cohorts(only=[name_of(8)])


def of_what_is_due(store: Store) -> object:
    never, *_ = verified_before(store.engine, store.now(), limit=LIMIT)
    assert never == name_of(COHORTS - 1)
    assert verified_before(store.engine, store.now() - timedelta(days=1), limit=LIMIT) == [never]
    return never


def of_what_is_broken(store: Store) -> object:
    with engine.reading(store.engine) as connection:
        return broken_chains(connection, limit=LIMIT)


def of_an_operator(store: Store) -> object:
    found = census(store.engine, unverified_seconds=WEEK_SECONDS, names_max=LIMIT)
    assert (found.cohorts, found.broken_count) == (COHORTS, 0), "parts are no cohorts"
    return found.overspent


@pytest.mark.parametrize(
    ("question", "but"),
    [
        (of_rounds, ()),
        (of_rare_rounds, ()),
        (of_heads, ()),
        (of_cohorts, ()),
        (of_what_is_due, ()),
        (of_what_is_broken, ()),
        (of_an_operator, ("cohorts",)),  # which are counted, in an index alone
        (of_quotas, ()),
    ],
)
def test_a_question_reads_few_rows_of_many(large: str, question: Question, but: tuple[str, ...]) -> None:
    before = counted(large, _READ)
    with Store.connect(large) as store:
        question(store)
    after = counted(large, _READ)
    read = {table: after[table] - before.get(table, 0) for table in after if table not in but}
    read = {table: count for table, count in read.items() if count}
    assert sum(read.values()) < FEW, read


def of_the_round_behind_one(store: Store) -> object:
    page = list_rounds(store, RoundFilter(), after="round 0210", limit=LIMIT)
    assert [each.round_id for each in page.rounds] == [f"round {number:04}" for number in range(211, 216)]
    return page


def of_a_round_that_no_broker_took(store: Store) -> None:
    store.mark_unqueued(["round 0210"])


@pytest.mark.parametrize("question", [of_the_round_behind_one, of_a_round_that_no_broker_took])
def test_a_round_is_found_by_its_identifier_alone(large: str, question: Question) -> None:
    """The index of cohorts and identifiers would be read from end to end, and count one row."""
    scans = "SELECT indexrelname, idx_scan FROM pg_stat_user_indexes WHERE relname = 'rounds'"
    before = counted(large, scans)
    with Store.connect(large) as store:
        question(store)
    after = counted(large, scans)
    used = {index for index, times in after.items() if times > before[index]}
    assert "uq_rounds_round" in used
    assert not used & {"uq_rounds_cohort_round_id", "ix_rounds_pending"}, used


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_names_in_any_table_are_found_without_reading_every_row(
    database_url: str, make_request: MakeRequest
) -> None:
    with Store.connect(database_url) as store:
        open_many(store, 2)
        for number in range(ROUNDS):
            store.insert_round(make_request(f"round {number}", cohort=name_of(1)), actor="tester")
    before = counted(database_url, _READ)
    with Store.connect(database_url) as store:
        assert store.cohort_names() == [name_of(0), name_of(1)]
    after = counted(database_url, _READ)
    assert sum(after.values()) - sum(before.values()) < FEW


def test_cohorts_that_were_never_verified_are_listed_whatever_happens_to_the_findings(store: Store) -> None:
    open_many(store, 3)
    names, now = [name_of(number) for number in range(3)], store.now()
    assert verified_before(store.engine, now, limit=9) == names
    note_verified(store, names, now)
    assert verified_before(store.engine, now - timedelta(days=1), limit=9) == []
    with store.engine.begin() as connection:
        connection.execute(delete(verifications).where(verifications.c.cohort == names[1]))
    assert verified_before(store.engine, now - timedelta(days=1), limit=9) == [names[1]]
    if engine.is_postgresql(store.engine):
        with store.engine.begin() as connection:
            connection.execute(text("TRUNCATE verifications"))
        assert verified_before(store.engine, now - timedelta(days=1), limit=9) == names


def test_a_cohort_that_was_removed_from_the_list_is_verified_in_the_next_pass(
    store: Store, accountant: Accountant
) -> None:
    open_many(store, 3)
    note_verified(store, [name_of(0)], store.now())
    with store.engine.begin() as connection:
        connection.execute(delete(unverified).where(unverified.c.cohort == name_of(2)))
    done = verify_oldest(store, accountant, enough=lambda: False)
    assert set(done) == {name_of(number) for number in range(3)}
    assert len(done) == 3


def test_every_way_to_be_unverified_is_counted(store: Store) -> None:
    """Never verified, verified long ago, and verified in a time to come."""
    open_many(store, 4)
    now, old = store.now(), store.now() - timedelta(days=8)
    note_verified(store, [name_of(0)], old)
    note_verified(store, [name_of(1)], now + timedelta(days=1))
    note_verified(store, [name_of(2)], now)
    found = census(store.engine, unverified_seconds=WEEK_SECONDS, names_max=9).unverified
    assert (found.count, found.names) == (2, (name_of(0), name_of(1)))
    found = census(store.engine, unverified_seconds=-1.0, names_max=3).unverified  # all were opened before
    assert (found.count, found.names) == (4, (name_of(0), name_of(1), name_of(2)))


def test_quotas_of_a_cohort_are_not_those_of_names_beside_it(store: Store, accountant: Accountant) -> None:
    for name in ("a", "a b", "a?", "A"):
        open_as_usual(store, name)
        for team in ("z", "ads"):
            set_quota(store, cohort=name, team=team, epsilon=0.5, reason="why", actor="tester")
    assert [(each.cohort, each.team) for each in store.quotas_of("a")] == [("a", "ads"), ("a", "z")]
