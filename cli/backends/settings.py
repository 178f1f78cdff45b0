"""Takes the settings of a command: options win over the environment, and that over the settings file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.cli.usage import meant
from shuffle_ledger.ledger.gone_names import replacement
from shuffle_ledger.ledger.settings import PREFIX, SETTINGS_FILE, NotJson, Settings, settings_of_file

SECRETS = frozenset({"token", "session_key", "webhook_key"})  # settings whose values no message shows
_PASSWORD = re.compile(r"([^/@:]*):[^/]*@")  # in an address, also in one that cannot be parsed


def settings_from(
    *,
    database_url: str | None = None,
    broker_url: str | None = None,
    actor: str | None = None,
    server: str | None = None,
    team: str | None = None,
) -> Settings:
    """Returns the settings of the environment, and else of the settings file, with options in their place.

    Raises:
        BadValue: a setting or its name cannot be one, or the file is not TOML.
    """
    given: dict[str, Any] = {
        "database_url": database_url,
        "broker_url": broker_url,
        "actor": actor,
        "server": server,
        "team": team,
    }
    for name in os.environ:
        instead = replacement(name)
        if instead is not None:
            raise BadValue(name, None, instead, f"setting {name} is gone: {instead}")
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as problem:
        raise _bad_setting(problem.errors()[0]) from problem
    except NotJson as problem:
        given_text = os.environ.get(problem.name)
        raise BadValue(problem.name, given_text, 'a JSON object, such as {"phones": 3}') from problem
    except ValueError as problem:  # of the file itself
        raise BadValue(SETTINGS_FILE, None, "TOML in UTF-8", f"{SETTINGS_FILE}: {problem}") from problem


def _bad_setting(error: Mapping[str, Any]) -> BadValue:
    """Returns the error of a setting, without the passwords that it may have."""
    name = str(error["loc"][0]) if error["loc"] else ""
    field, value = PREFIX + "_".join(map(str, error["loc"])).upper(), error.get("input")
    if error["type"] == "extra_forbidden":  # only the file can have a name that is none
        hint = replacement(field) or f"there is no such setting{meant(name, Settings.model_fields)}"
        return BadValue(name, None, "the name of a setting", f"{SETTINGS_FILE}, {name}: {hint}")
    if field not in os.environ and name in settings_of_file():
        field = f"{SETTINGS_FILE}, {name}"
    if value == "":
        message = f"{field} is empty: give it a value, or unset it"
        return BadValue(field, value, "a value; unset it instead of leaving it empty", message)
    if name in SECRETS:
        value = "(hidden)"
    elif isinstance(value, str):
        value = _PASSWORD.sub(r"\1:***@", value)
    said = re.sub(r"^(Value error, |(Input|String) should (be )?)", "", str(error["msg"]))
    return BadValue(field, value, f"a setting that fits ({said})")
