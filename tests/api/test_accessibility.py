"""Every kind of page in a browser: axe finds nothing, in light on a desktop and in the dark on a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from axe_core_python.base import AXE_SCRIPT  # type: ignore[import-untyped]  # it has no types
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.cli.rendering.statements.html import html
from shuffle_ledger.ledger.api.pages import routes
from shuffle_ledger.ledger.checkpoints.making import sign_standing
from shuffle_ledger.ledger.decisions import open_cohort, set_quota
from shuffle_ledger.ledger.evidence import StatementWanted
from shuffle_ledger.ledger.recovery.reconciliation import reconcile
from shuffle_ledger.ledger.values.signing import SigningKey
from tests.api.conftest import ROUND, Server
from tests.api.test_pages import WAIT_SECONDS_MAX, chrome, emulate
from tests.api.test_rounds import TOO_MUCH

FIRST = date(2025, 1, 6)
LONG = "a-name-without-any-spaces-" * 6
# Rules that another size or other colors can break; all others were tried on the desktop in light.
VISUAL = ["color-contrast", "scrollable-region-focusable", "link-in-text-block"]
MODES = {"desktop": (False, False), "phone, dark": (True, True)}
RUN = """
const [rules, done] = arguments;
const options = rules.length ? {runOnly: rules} : {};
axe.run(document, {...options, resultTypes: ['violations']}).then(
  (found) => done(found.violations.flatMap(
    (one) => one.nodes.map((node) => [one.id, node.html, node.failureSummary]))),
  (error) => done([String(error)]));
"""


@pytest.fixture
def open_page(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    opened = chrome(tmp_path / "profile")
    yield opened
    opened.quit()


def problems_of(browser: webdriver.Chrome, name: str) -> list[str]:
    """Return what is wrong with the page that is shown: axe's violations, and scrolling sideways."""
    browser.execute_script(AXE_SCRIPT)
    found = []
    for mode, (phone, dark) in MODES.items():
        emulate(browser, phone=phone, dark=dark)
        rules = VISUAL if phone or dark else []
        found += [f"{name}, {mode}: {one}" for one in browser.execute_async_script(RUN, rules)]
        shown = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})
        if shown["cssContentSize"]["width"] > shown["cssLayoutViewport"]["clientWidth"]:
            found.append(f"{name}, {mode}: it scrolls sideways")
    return found


def fill(browser: webdriver.Chrome, form: str, **fields: str) -> None:
    """Fill in a form that a selector finds, and send it."""
    for name, value in fields.items():
        field = browser.find_element(By.CSS_SELECTOR, f"{form} [name={name}]")
        browser.execute_script("arguments[0].value = arguments[1]", field, value)
    browser.execute_script("window.filledIn = true")
    browser.find_element(By.CSS_SELECTOR, f"{form} button:not(.quiet)").click()
    # A mark, not an element that gets stale: the driver has several errors for one of a page that went.
    waiting = WebDriverWait(browser, WAIT_SECONDS_MAX, ignored_exceptions=[WebDriverException])
    waiting.until(
        lambda page: page.execute_script("return !window.filledIn && document.readyState === 'complete'")
    )


def every_kind_of_cohort(server: Server) -> None:
    """Give a server's ledger cohorts of all policies and states, with rounds."""
    store = server.store
    opening: dict[str, Any] = {"population": 10**5, "delta": 1e-6, "actor": "tester"}
    plan: dict[str, Any] = {"plan": [{**ROUND, "count": 3}], "population": 5000, "epsilon": 1, "delta": 1e-6}
    assert server.ask("POST", "/v1/cohorts", json={"name": "planned", "policy": "plan", **plan}).is_success
    open_cohort(store, name="study", epsilon=1.0, policy="adaptive", ceiling=2.0, **opening)
    open_cohort(store, name=LONG, epsilon=1.0, policy="adaptive", **opening)
    said: dict[str, Any] = {"reason": "agreed", "actor": "tester"}
    set_quota(store, "study", team="ads", epsilon=0.5, **said)
    for number in range(4):
        day, use_case = f"{FIRST + timedelta(days=7 * number)}", ("emoji", LONG)[number % 2]
        assert server.register(f"round {number}", collected_on=day, use_case=use_case).is_success
    server.register("no", use_case="new words", **TOO_MUCH)
    server.register(f"{LONG}1", cohort=LONG)
    server.register("slot", cohort="planned")
    server.register("broken", cohort="secret", randomizer="krr(k=2, epsilon0=4)", reports=50_000)
    settled = server.ask("POST", "/v1/rounds/broken/settle", bearer="registrar", json={"reports": 2})
    assert settled.json()["overspent"] is True
    standing = store.standing()
    later = tuple(replace(head, sequence=head.sequence + (head.cohort == LONG)) for head in standing.heads)
    kept = sign_standing(replace(standing, heads=later), SigningKey.generate())
    reconcile(store, kept, reason="an old backup", actor="tester", nothing_later=True)


def pages(browser: webdriver.Chrome, server: Server, folder: Path) -> Iterator[str]:
    """Open one page of every kind after the other, and yield their names."""
    browser.get(f"{server.url}/login")
    yield "login"
    fill(browser, "main form", token=LONG)
    yield "login refused"
    fill(browser, "main form", token=server.tokens["admin"])
    yield "overview"
    for name in ("phones", "study", "planned", "secret", LONG):
        browser.get(f"{server.url}/cohorts/{name}")
        for summary in browser.find_elements(By.CSS_SELECTOR, "summary"):
            summary.click()
        yield f"cohort {name[:20]}"
    browser.get(f"{server.url}/cohorts/phones?kind=admitted&before=4")
    yield "history"
    for name, reports in (("refused", "10"), ("wrong", "0")):
        browser.get(f"{server.url}/cohorts/phones")
        fill(browser, "#quote form", randomizer="krr(k=2, epsilon0=1)", reports=reports)
        yield f"quote {name}"
    fill(browser, "#quote form", randomizer="krr(k=2, epsilon0=1)", reports="900")
    fill(browser, ".answer form", round_id="no")
    yield "register refused"
    for name in ("round 0", "no", f"{LONG}1"):
        browser.get(f"{server.url}/rounds/{name}")
        yield f"round {name[:20]}"
    for reason in (LONG, " "):
        browser.get(f"{server.url}/rounds/round 1")
        fill(browser, "form[action*=void]", reason=reason)
        yield f"void {len(reason)}"
    browser.get(f"{server.url}/rounds/round 1")
    fill(browser, "form[action*=correct]", reports="800", reason="a shard was lost")
    yield "correct"
    browser.get(f"{server.url}/cohorts/absent")
    yield "error"
    statement = StatementWanted(cohorts=("phones",)).made(
        server.store, Accountant(), made_at=datetime(2025, 3, 1, tzinfo=UTC)
    )
    (folder / "statement.html").write_bytes(html(statement))
    browser.get((folder / "statement.html").as_uri())
    yield "statement"


@pytest.mark.system
def test_axe_finds_nothing_on_any_page(
    serve: Callable[..., Server],
    open_page: webdriver.Chrome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "PROFILE_SECONDS", 60.0)  # no page is asked for again while axe looks at it
    server = serve()
    every_kind_of_cohort(server)
    found = {name: problems_of(open_page, name) for name in pages(open_page, server, tmp_path)}
    assert len(found) == 20
    problems = [problem for listed in found.values() for problem in listed]
    assert not problems, "\n".join(problems)
