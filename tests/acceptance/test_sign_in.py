"""People sign in with a browser at a provider of OpenID Connect, a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from selenium import webdriver

from tests.acceptance.conftest import SCRIPT, answers
from tests.api.test_pages import _one, _reaches, chrome
from tests.commands import command
from tests.ports import free_port
from tests.workers.conftest import REPOSITORY, WAIT_SECONDS_MAX, awaited

pytestmark = pytest.mark.system

PROVIDER = Path(sys.executable).with_name("oidc-provider-mock")
SESSION_KEY = "s" * 32


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    opened = chrome(tmp_path / "profile")
    # The provider's pages name a style sheet of another host; nothing here needs it.
    opened.execute_cdp_cmd("Network.enable", {})
    opened.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["https://*"]})
    yield opened
    opened.quit()


@contextmanager
def process(
    log: Path, *words: object, answering: Callable[[], bool], more: dict[str, str] | None = None
) -> Iterator[None]:
    """Run a program until the end of the block, which begins as soon as it answers."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | (more or {})
    with (
        log.open("ab") as said,
        subprocess.Popen([*map(str, words)], env=environment, stdout=said, stderr=said) as running,
    ):
        try:
            awaited(answering, log)
            yield
        finally:
            running.terminate()
            running.wait(WAIT_SECONDS_MAX)


def knows(provider: str) -> bool:
    """Return whether a provider answers."""
    try:
        return httpx.get(f"{provider}/.well-known/openid-configuration").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a server whose people sign in at a provider: ann as an admin, bob as a reader."""
    provider, url = f"http://localhost:{free_port()}", f"http://127.0.0.1:{free_port()}"
    people = {"ann": ["bosses"], "bob": ["guests"], "eve": ["strangers"]}
    users = [f"--user-claims={json.dumps({'sub': name, 'groups': found})}" for name, found in people.items()]
    folder = tmp_path_factory.mktemp("ledger")
    ledger = {"SHUFFLE_LEDGER_DATABASE_URL": f"sqlite:///{folder / 'ledger.db'}"}
    settings = {
        "ISSUER": provider,
        "CLIENT_ID": "ledger-pages",
        "CLIENT_SECRET": "s3cret",
        "REDIRECT_URL": f"{url}/login/callback",
        "ROLES_CLAIM": "groups",
        "ROLES": json.dumps({"bosses": "admin", "guests": "reader"}),
    }
    more = ledger | {f"SHUFFLE_LEDGER_OIDC_{name}": value for name, value in settings.items()}
    more["SHUFFLE_LEDGER_SESSION_KEY"] = SESSION_KEY
    cohort = ["cohort", "open", "phones", "--population", "100000", "--epsilon", "1", "--delta", "1e-6"]
    for words in (["init"], cohort):
        assert command(*words, folder=folder, settings=ledger).exit_code == 0
    ports = (each.rpartition(":")[2] for each in (provider, url))
    log = folder / "log"
    with (
        process(log, PROVIDER, "--port", next(ports), *users, answering=lambda: knows(provider)),
        process(log, SCRIPT, "serve", "--port", next(ports), answering=lambda: answers(url), more=more),
    ):
        yield url


def sign_in(browser: webdriver.Chrome, url: str, name: str) -> None:
    """Sign in: from the login page to the provider, and back."""
    browser.get(url + "/")
    _reaches(browser, url + "/login")
    _one(browser, 'a.button[href="/login/start"]').click()
    _one(browser, f'button[name=sub][value="{name}"]').click()


@pytest.mark.parametrize(("name", "role"), [("ann", "admin"), ("bob", "reader")])
def test_a_person_signs_in_at_the_provider_sees_the_overview_and_signs_out(
    browser: webdriver.Chrome, url: str, name: str, role: str
) -> None:
    sign_in(browser, url, name)
    _reaches(browser, url + "/")
    assert _one(browser, ".cohort h2").text == "phones"
    header = _one(browser, "header").text
    assert f"oidc:{name}" in header
    assert role in header
    _one(browser, "header button").click()
    _reaches(browser, url + "/login")
    browser.get(url + "/cohorts/phones")
    _reaches(browser, url + "/login")  # signed out: the page asks again


def test_a_person_without_a_role_is_sent_back_and_sees_nothing(browser: webdriver.Chrome, url: str) -> None:
    sign_in(browser, url, "eve")
    assert "You were not signed in" in _one(browser, ".wrong").text
    browser.get(url + "/")
    _reaches(browser, url + "/login")
