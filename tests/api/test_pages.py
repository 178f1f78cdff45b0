"""The pages for people: sessions, forms that only they may send, and what a browser shows."""

from __future__ import annotations

import html
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service as ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.access import revoke
from shuffle_ledger.ledger.api.auth.sessions import COOKIE, SESSION_SECONDS, Sessions
from shuffle_ledger.ledger.api.dependencies import Dispatch
from shuffle_ledger.ledger.api.pages import routes
from shuffle_ledger.ledger.api.pages.routes import POLICY
from shuffle_ledger.ledger.checkpoints.making import sign_standing
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.recovery.reconciliation import reconcile
from shuffle_ledger.ledger.storage.anchor import Anchor
from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.requests import Pending
from shuffle_ledger.ledger.values.signing import SigningKey
from tests.api.conftest import OTHERS_COOKIES, Server
from tests.api.test_rounds import TOO_MUCH

WAIT_SECONDS_MAX = 60.0
ATTACK = "<script>alert(1)</script>"
FORM = {"randomizer": "krr(k=2, epsilon0=1)", "reports": "500"}


def _login(server: Server, bearer: str = "reader") -> httpx.Client:
    person = httpx.Client(base_url=server.url, timeout=60)
    answer = person.post("/login", data={"token": server.tokens[bearer]})
    assert answer.status_code == 303
    return person


def _secret(page: httpx.Response) -> str:
    found = re.search(r'name="form_secret" value="([0-9a-f]{64})"', page.text)
    assert found
    return found.group(1)


def test_strangers_see_the_login_and_nothing_else(server: Server) -> None:
    for path in ("/", "/cohorts/phones", "/cohorts/absent", "/anything"):
        answer = server.http.get(path)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
        assert "phones" not in answer.text
    assert "phones" not in server.http.get("/login").text
    wrong = server.http.post("/login", data={"token": "sl_wrong"})
    assert wrong.status_code == 401
    assert COOKIE not in wrong.cookies


def test_a_session_ends_with_its_token_its_time_or_its_key(server: Server) -> None:
    person = _login(server)
    assert person.get("/").status_code == 200
    good = person.cookies[COOKIE]
    token_id, ends, nonce, mac = good.split(".")
    forged = [
        f"{token_id}.{int(ends) + 1}.{nonce}.{mac}",
        f"{'0' * 16}.{ends}.{nonce}.{mac}",
        f"{token_id}.{ends}.{nonce}.{'0' * 64}",
        "",
        "nonsense",
    ]
    other = Sessions("another key that is also long enough")
    token = other.bearer(server.store, good)
    assert token is None
    for cookie in forged:
        answer = httpx.get(f"{server.url}/", headers={"Cookie": f"{COOKIE}={cookie}"})
        assert answer.status_code == 303, cookie
    revoke(server.store, server.tokens["reader"].split("_")[1])
    assert person.get("/").status_code == 303


@pytest.mark.slow
def test_logging_out_ends_every_copy_of_the_session_on_every_server(
    serve: Callable[..., Server],
) -> None:
    key = SecretStr("a key that all servers of this test share")
    server, beside = serve(session_key=key), serve(session_key=key)
    person, other = _login(server), _login(server)
    stolen = {"Cookie": f"{COOKIE}={person.cookies[COOKIE]}"}
    page = person.get("/")
    for url in (server.url, beside.url):
        assert httpx.get(f"{url}/cohorts/phones", headers=stolen).status_code == 200
    assert person.post("/logout", data={"form_secret": _secret(page)}).status_code == 303
    for url in (server.url, beside.url):
        assert httpx.get(f"{url}/cohorts/phones", headers=stolen).status_code == 303
        form = {**FORM, "form_secret": _secret(page)}
        answer = httpx.post(f"{url}/cohorts/phones/quote", data=form, headers=stolen)
        assert answer.headers["Location"] == "/login"
    assert other.get("/").status_code == 200  # another session of the same token goes on
    assert _login(server).get("/").status_code == 200


def test_a_session_lives_beside_whatever_others_have_set(server: Server) -> None:
    """Other applications of the host may set cookies that no standard allows."""
    session = f"{COOKIE}={_login(server).cookies[COOKIE]}"
    for cookies in (f"{OTHERS_COOKIES}; {session}", f"{session}; {OTHERS_COOKIES}"):
        answer = server.http.get("/", headers={b"Cookie": cookies.encode()})
        assert (answer.status_code, "phones" in answer.text) == (200, True), cookies
    assert server.http.get("/", headers={b"Cookie": OTHERS_COOKIES.encode()}).status_code == 303


@pytest.mark.parametrize(
    ("host", "forwarded", "secure"),
    [
        ("127.0.0.1:1", {}, False),
        ("ledger.example", {}, True),
        ("localhost", {"X-Forwarded-Proto": "https"}, True),
    ],
)
def test_cookies_have_their_flags_when_they_are_set_and_removed(
    serve: Callable[..., Server], host: str, forwarded: dict[str, str], secure: bool
) -> None:
    server = serve(trusted_proxies="127.0.0.1")
    headers = {"Host": host, **forwarded}
    logged_in = server.http.post("/login", data={"token": server.tokens["reader"]}, headers=headers)
    cookie = {"Cookie": logged_in.headers["Set-Cookie"].partition(";")[0]}
    assert server.tokens["reader"].split("_")[2] not in logged_in.headers["Set-Cookie"]
    # A cookie opens pages, never the API: other sites could send it along.
    assert server.http.get("/v1/cohorts", headers=cookie).status_code == 401
    page = server.http.get("/", headers=headers | cookie)
    out = server.http.post("/logout", data={"form_secret": _secret(page)}, headers=headers | cookie)
    for answer, seconds in ((logged_in, SESSION_SECONDS), (out, 0)):
        first, *flags = answer.headers["Set-Cookie"].split("; ")
        assert first.startswith(f"{COOKIE}=")
        expected = {"HttpOnly", f"Max-Age={seconds}", "Path=/", "SameSite=strict"}
        assert set(flags) == expected | ({"Secure"} if secure else set())
        assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.slow
def test_forms_of_other_sites_or_sessions_do_nothing(server: Server) -> None:
    person, other = _login(server), _login(server)
    page = person.get("/cohorts/phones")
    right = {**FORM, "form_secret": _secret(page)}
    path = "/cohorts/phones/quote"
    assert person.post(path, data=right).status_code == 200
    assert person.post(path, data=FORM).status_code == 403
    assert person.post(path, data={**right, "form_secret": "0" * 64}).status_code == 403
    assert other.post(path, data=right).status_code == 403
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert person.post(path, data=right, headers=headers).status_code == 403
        assert (
            person.post("/login", data={"token": server.tokens["admin"]}, headers=headers).status_code == 403
        )
    assert person.post("/logout", data={"form_secret": _secret(page)}).status_code == 303
    assert person.get("/").status_code == 303


def test_a_page_shows_what_its_bearer_may_see(server: Server) -> None:
    server.issue("limited", "reader", cohorts=["phones"])
    person = _login(server, "limited")
    home = person.get("/")
    assert "phones" in home.text
    assert "secret" not in home.text.replace("form_secret", "")
    theirs, absent = person.get("/cohorts/secret"), person.get("/cohorts/absent")
    assert theirs.status_code == absent.status_code == 404
    assert re.sub(r"[0-9a-f]{64}", "", theirs.text) == re.sub(r"[0-9a-f]{64}", "", absent.text).replace(
        "absent", "secret"
    )


@pytest.mark.slow
def test_names_are_shown_and_never_run(server: Server) -> None:
    opening = {"name": ATTACK, "population": 1000, "epsilon": 1, "delta": 1e-6}
    assert server.ask("POST", "/v1/cohorts", json=opening).status_code == 201
    assert server.register(ATTACK, cohort=ATTACK, reports=500, use_case=ATTACK).status_code == 201
    person = _login(server)
    path = "/cohorts/" + ATTACK.replace("/", "%2F").replace("<", "%3C").replace(">", "%3E")
    for page in (person.get("/"), person.get(path)):
        assert page.status_code == 200
        assert ATTACK not in page.text
        assert "&lt;script&gt;" in page.text
        assert page.headers["Content-Security-Policy"] == POLICY
        assert "script" not in POLICY.replace("default-src 'none'", "")
        assert not re.search(r"<script|\son\w+=|\sstyle=|javascript:|https?://", page.text)


def test_a_quote_that_makes_no_sense_says_why(untouched: Server) -> None:
    person = _login(untouched)
    secret = _secret(person.get("/cohorts/phones"))
    for changes, said in (
        ({"reports": "many"}, "reports"),
        ({"reports": "9" * 30}, "reports"),
        ({"reports": "100001"}, "population"),
        ({"randomizer": ATTACK}, "randomizer"),
        ({"honest_fraction": "nan"}, "honest_fraction"),
    ):
        answer = person.post("/cohorts/phones/quote", data={**FORM, **changes, "form_secret": secret})
        assert answer.status_code == 422
        alert = re.search(r'role="alert">(.*?)</p>', answer.text, re.DOTALL)
        assert alert
        assert said in alert.group(1)


@pytest.mark.slow
def test_only_pages_that_can_be_asked_for_again_are_refreshed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page without its profile is asked for again; the answer to a form is at no address."""
    monkeypatch.setattr(routes, "PROFILE_SECONDS", 0.0)
    server.register("first")
    person = _login(server)
    page = person.get("/cohorts/phones")
    quote = person.post("/cohorts/phones/quote", data={**FORM, "form_secret": _secret(page)})
    assert (page.status_code, "Refresh" in page.headers) == (200, True)
    assert (quote.status_code, "Refresh" in quote.headers) == (200, False)


def test_the_page_of_a_closed_cohort_offers_no_cost_and_no_alarm(server: Server) -> None:
    person = _login(server)
    assert 'id="quote"' in person.get("/cohorts/phones").text
    closed = server.ask("POST", "/v1/cohorts/phones/close", bearer="admin", json={"reason": "unused"})
    assert closed.status_code == 200, closed.text
    page = person.get("/cohorts/phones").text
    assert ('id="quote"' in page, 'class="badge bad"' in page) == (False, False)
    assert '<span class="badge">closed</span>' in page


@pytest.mark.slow
def test_a_broken_promise_is_said_before_any_number(server: Server) -> None:
    person = _login(server)
    assert "promise was broken" not in person.get("/cohorts/phones").text
    server.register("a", randomizer="krr(k=2, epsilon0=4)", reports=50_000)
    settled = server.ask("POST", "/v1/rounds/a/settle", bearer="registrar", json={"reports": 2})
    assert settled.json()["overspent"] is True
    page = person.get("/cohorts/phones").text
    assert page.index("The promise was broken") < page.index(">Used<")
    assert "no round is admitted any more" in page
    assert "overspent" in person.get("/").text
    standing = server.store.standing()
    later = tuple(replace(head, sequence=head.sequence + 5) for head in standing.heads)
    kept = sign_standing(replace(standing, heads=later), SigningKey.generate())
    reconcile(server.store, kept, reason="an old backup", actor="tester", nothing_later=True)
    page = person.get("/cohorts/secret").text
    assert page.index("The spending is unknown") < page.index(">Used<")
    assert re.search(r'class="big">unknown <', page)


def test_no_page_says_what_is_left_of_a_ledger_behind_its_checkpoint(
    store: Store, serve: Callable[..., Server], tmp_path: Path
) -> None:
    standing = store.standing()
    later = tuple(replace(head, sequence=head.sequence + 1) for head in standing.heads)
    kept = tmp_path / "checkpoint.json"
    ahead = sign_standing(replace(standing, heads=later), SigningKey.generate())
    kept.write_text(json.dumps(ahead.to_json()))
    url = store.engine.url.render_as_string(hide_password=False)
    with Store.connect(url, anchor=Anchor(path=kept)) as behind:
        server = serve(opened_as=behind)
        person = _login(server)
        for path in ("/", "/cohorts/phones"):
            page = person.get(path)
            assert page.status_code == 503
            assert "behind its checkpoint" in page.text
            assert "100,000" not in page.text
        answer = server.ask("GET", "/v1/cohorts/phones/budget")
        assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (503, "behind_checkpoint")
        assert server.ask("GET", "/v1/rounds").status_code == 200  # what the database holds


def test_what_waits_elsewhere_is_not_for_whom_it_does_not_exist(
    serve: Callable[..., Server],
) -> None:
    server = serve(Dispatch(decide=_never, publish=lambda _: True))
    assert server.register("a", cohort="secret").status_code == 202
    server.issue("limited", "reader", cohorts=["phones"])
    assert "1 round undecided" in _login(server).get("/").text
    assert "undecided" not in _login(server, "limited").get("/").text


def _never(_accountant: Accountant, round_id: str) -> Pending:
    raise AssertionError(round_id)


# In a browser.


def chrome(profile: Path, *, scripts: bool = True) -> webdriver.Chrome:
    """Return an open browser."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium with its chromedriver is installed: the pages were not tried in a browser")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={profile}")
    if not scripts:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    return webdriver.Chrome(options=options, service=ChromeService(driver))


def emulate(browser: webdriver.Chrome, *, phone: bool, dark: bool = False) -> None:
    """Have the browser show pages as on a phone or a desktop, in light or dark."""
    width, height = (390, 844) if phone else (1280, 900)
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    """Yield a browser of a phone, which runs no scripts."""
    opened = chrome(tmp_path / "profile", scripts=False)
    emulate(opened, phone=True)
    yield opened
    opened.quit()


def _one(browser: WebDriver, selector: str) -> WebElement:
    """Return the first element that a selector finds, once there is one."""
    # The driver has several errors for a page that goes while it is asked.
    waiting = WebDriverWait(browser, WAIT_SECONDS_MAX, ignored_exceptions=[WebDriverException])
    found: WebElement = waiting.until(lambda page: page.find_element(By.CSS_SELECTOR, selector))
    return found


def _all(browser: WebDriver, selector: str) -> list[WebElement]:
    """Return all elements that a selector finds, once there is one."""
    _one(browser, selector)
    return browser.find_elements(By.CSS_SELECTOR, selector)


def _reaches(browser: WebDriver, address: str) -> None:
    WebDriverWait(browser, WAIT_SECONDS_MAX).until(lambda page: page.current_url == address)


@pytest.mark.system
def test_somebody_logs_in_looks_around_and_asks_for_a_price(
    serve: Callable[..., Server], browser: webdriver.Chrome
) -> None:
    server = serve()
    for number in range(3):
        server.register(f"health {number}", use_case="health-types")
    server.register("too much", **TOO_MUCH)
    spent = server.ask("GET", "/v1/cohorts/phones/budget").json()
    browser.get(server.url + "/cohorts/phones")
    _reaches(browser, server.url + "/login")
    _one(browser, "[name=token]").send_keys(server.tokens["reader"])
    _one(browser, "main button").click()
    assert [card.text for card in _all(browser, ".cohort h2")] == [
        "phones",
        "secret",
    ]
    used = _one(browser, ".cohort .used")
    assert float(used.get_attribute("width") or 0) == pytest.approx(
        100 * spent["epsilon_spent_upper"], abs=0.01
    )
    _one(browser, "a.cohort").click()
    _reaches(browser, server.url + "/cohorts/phones")
    assert _one(browser, "h1").text == "phones"
    assert len(_all(browser, ".history tbody tr")) == 5
    text = _one(browser, "main").text
    for expected in ("health 2", "too much", "the budget would be exceeded", "3 admitted", "registrar"):
        assert expected in text
    assert len(_all(browser, ".chart .refused")) == 1
    for _ in range(int(WAIT_SECONDS_MAX)):  # a page leaves out what is still computed
        if len(_all(browser, ".chart .line")) == 2:  # spending and profile
            break
        time.sleep(1.0)  # nothing tells that the server has computed it but the page itself
        browser.refresh()
    assert len(_all(browser, ".chart .line")) == 2
    for reports, verdict in (("10000", "admitted"), ("10", "refused")):
        for name, value in (("randomizer", "generic(epsilon0=3)"), ("reports", reports)):
            field = _one(browser, f"[name={name}]")
            field.clear()
            field.send_keys(value)
        _one(browser, ".quote button").click()
        assert f"would be {verdict}" in _one(browser, f".answer.{verdict}").text
    body = _one(browser, "body")
    window = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})
    assert body.size["width"] <= window["cssLayoutViewport"]["clientWidth"]
    assert (
        window["cssContentSize"]["width"] <= window["cssLayoutViewport"]["clientWidth"]
    )  # no sideways scrolling
    said = [
        line
        for line in browser.get_log("browser")  # type: ignore[no-untyped-call]
        if line["level"] != "DEBUG"
    ]
    assert said == []  # nothing was blocked, nothing is missing
    _one(browser, "header button").click()
    _reaches(browser, server.url + "/login")


@pytest.mark.slow
def test_the_overview_comes_in_pages_and_alarms_of_all_of_them(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "COHORTS_ON_PAGE", 2)
    for name in ("a & b", "tablets", "watches"):
        body = {"name": name, "population": 10**5, "epsilon": 1, "delta": 1e-6, "policy": "adaptive"}
        assert server.ask("POST", "/v1/cohorts", json=body).status_code == 201
    assert server.register("x", cohort="watches").status_code == 201
    leaked = {"round_id": "leak", "round": None, "reason": "found in a log"}
    address = "/v1/cohorts/watches/incidents"
    assert server.ask("POST", address, bearer="registrar", json=leaked).status_code == 200
    assert server.ask("GET", "/v1/cohorts/watches").json()["status"] == "overspent"
    person, seen, address = _login(server), [], "/"
    while address:
        page = person.get(address)
        assert "watches" in page.text.split('class="cards"')[0]  # the alarm, on every page
        seen.append(re.findall(r"<h2>([^<]+?) ?<", page.text))
        found = re.search(r'rel="next" href="([^"]+)"', page.text)
        address = html.unescape(found.group(1)) if found else ""
    assert seen == [["watches", "a &amp; b"], ["phones", "secret"], ["tablets"]]  # the overspent one first
    assert server.register("y").status_code == 201  # which used a part of its budget
    first = re.findall(r"<h2>([^<]+?) ?<", person.get("/").text)
    assert first == ["watches", "phones"]
    assert re.findall(r"<h2>([^<]+?) ?<", person.get("/?after=nothing").text) == first
    server.issue("limited", "reader", cohorts=["phones", "watches", "tablets"])
    limited = _login(server, "limited").get("/?after=phones").text
    assert re.findall(r"<h2>([^<]+?) ?<", limited) == ["tablets"]
    assert "cohorts/secret" not in limited
    listed = server.ask("GET", "/v1/cohorts?limit=2&after=phones", bearer="limited").json()
    assert [each["name"] for each in listed] == ["tablets", "watches"]


@pytest.mark.slow
def test_a_history_is_filtered_by_outcome_kind_use_case_and_day(server: Server) -> None:
    days = ("2025-01-06", "2025-01-13", "2025-01-20")
    for number, day in enumerate(days):
        use_case = ("emoji", "words")[number % 2]
        assert server.register(f"a {number}", collected_on=day, use_case=use_case).status_code == 201
    server.register("too much", collected_on=days[1], use_case="emoji", **TOO_MUCH)
    person = _login(server)

    def shown(query: str) -> list[str]:
        page = person.get(f"/cohorts/phones?{query}")
        assert page.status_code == 200
        return re.findall(r'href="/rounds/([^"]+)"', page.text.split('id="history"')[1])

    assert shown("") == ["too%20much", "a%202", "a%201", "a%200"]
    assert shown("kind=&randomizer=&use_case=&first=&last=") == shown("")  # the form with nothing filled in
    assert shown("kind=refused") == ["too%20much"]
    assert shown("randomizer=krr&use_case=emoji") == ["a%202", "a%200"]
    assert shown(f"first={days[1]}&last={days[1]}") == ["too%20much", "a%201"]
    assert shown("use_case=none") == []


@pytest.mark.parametrize(
    ("text", "number"), [("3000000", 3_000_000), ("3,000,000", 3_000_000), ("3 000 000", 3_000_000), ("7", 7)]
)
def test_a_form_takes_numbers_as_people_write_them(text: str, number: int) -> None:
    assert routes.whole("reports", text) == number


@pytest.mark.parametrize("text", ["", "3.000.000", "3,00", "30,0000", "3, 000", "1,000 000", "-3", "3e6"])
def test_a_form_refuses_numbers_that_may_mean_another(text: str) -> None:
    with pytest.raises(InvalidValue, match="such as 3,000,000"):
        routes.whole("reports", text)
