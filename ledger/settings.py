"""Settings from the environment (`SHUFFLE_LEDGER_...`), and else from the file `shuffle-ledger.toml`."""

from __future__ import annotations

import getpass
import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

SETTINGS_FILE = "shuffle-ledger.toml"  # in the working directory
PREFIX = "SHUFFLE_LEDGER_"  # of names in the environment
_SecretKey = Annotated[SecretStr, Field(min_length=32)]


def _operating_system_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        return "unknown"


class NotJson(ValueError):
    """A setting in the environment that has parts, and is no JSON."""

    def __init__(self, name: str) -> None:
        """Keep the setting's name in the environment."""
        super().__init__(f"{name} is no JSON")
        self.name = name


class Settings(BaseModel):
    """Where the ledger and the broker are, and who is acting.

    Arguments win over the environment, which wins over the file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    database_url: str = "sqlite:///shuffle-ledger.db"
    broker_url: str | None = Field(
        default=None, pattern=r"^[a-z+]+://"
    )  # None: everything happens in this process
    broker_transport_options: dict[str, Any] = Field(default_factory=dict)  # JSON; passed to the transport
    queue: str = Field(
        default="shuffle-ledger", min_length=1, max_length=200
    )  # prefix of its names at the broker
    heartbeat_file: Path | None = (
        None  # touched by a worker while its main loop runs, for its keeper to look at
    )
    actor: str = Field(default_factory=_operating_system_user, min_length=1, max_length=200)
    team: str | None = Field(default=None, min_length=1, max_length=60)  # whose quotas rounds are charged to
    decision_timeout_seconds: float = Field(default=60.0, ge=0, le=3600)  # how long to wait for a worker
    signing_key: Path | None = None  # the PEM file whose key signs checkpoints
    checkpoint: Path | None = None  # the last checkpoint: nothing is written while the ledger is behind it
    checkpoint_key: str | None = None  # the public key that must have signed it: hexadecimal, or a file
    checkpoint_directory: Path | None = (
        None  # where the scheduler writes checkpoints, if it has a signing key
    )
    checkpoint_every_seconds: float = Field(default=300.0, ge=1, le=86_400)
    # Of the database's clock from this machine's, and backwards from a cohort's last entry, for writing.
    clock_difference_max_seconds: float = Field(default=3600.0, ge=1, le=1e10)
    server: str | None = None  # the address of a server: commands ask it instead of a database
    token: SecretStr | None = None  # shown to that server
    authentication_failures: int = Field(default=30, ge=1, le=10**6)  # from one address; forgotten with time
    metrics_cohorts: int = Field(default=20, ge=0, le=1000)  # that used most, named in the metrics
    # Where a worker answers what it counts, as 127.0.0.1:9808; None: nowhere.
    worker_metrics: str | None = Field(
        default=None, pattern=r"^([0-9A-Za-z.-]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}$"
    )
    log_format: Literal["console", "json"] = "console"  # of servers, workers and the scheduler
    access_log: bool = True  # a line for each answer of a server
    # Overspent and frozen cohorts that are no alarm any more, with the last entry that the operator knows of.
    acknowledged: dict[str, int] = Field(default_factory=dict, max_length=1000)
    drain_seconds: float = Field(default=5.0, ge=0, le=3600)  # from SIGTERM to a server's end
    session_key: _SecretKey | None = None  # None: one per server and start
    webhook_key: _SecretKey | None = None  # signs messages to other services
    # OpenID Connect, for servers: `api/auth/oidc_settings.py` checks that they fit together.
    oidc_issuer: str | None = None  # its address, as its tokens name it
    oidc_audience: str | None = None  # of its tokens for this server
    oidc_roles_claim: str | None = None  # its name, or a JSON pointer to it
    oidc_roles: dict[str, Any] | None = Field(default=None, max_length=1000)  # role or grant, by its values
    permit_key: Path | None = None  # the PEM file whose key signs permits; not the key of checkpoints
    # Files with keys that signed permits before, which gates still trust; a JSON list.
    permit_keys_retired: tuple[Path, ...] = ()
    permit_issuer: str | None = Field(default=None, min_length=1, max_length=200)  # None: named by the ledger
    permit_days: float = Field(default=30.0, gt=0, le=3660)  # from the end of a collection to a permit's
    releaser_keys: Path | None = None  # a JWK set, or a folder of these: whose receipts settle rounds
    precision: float = Field(default=4e-3, ge=1e-6, le=0.1)  # of the accountant

    def __init__(self, **given: Any) -> None:
        """Read the settings that are not given.

        Raises:
            NotJson: a setting in the environment has parts, and is no JSON.
            ValueError: the file is not TOML in UTF-8.
        """
        super().__init__(**{**settings_of_file(), **dict(_of_environment(type(self))), **given})

    @field_validator("*", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        # The default of an empty setting could mean another ledger, or no worker that decides.
        if value == "":
            raise ValueError("it is empty: give it a value, or unset it")
        return value


def settings_of_file() -> dict[str, Any]:
    """Return what the settings file has, none if there is no file; raises ValueError if it is not TOML."""
    place = Path(SETTINGS_FILE)
    return tomllib.loads(place.read_text("utf-8")) if place.is_file() else {}


def _of_environment(settings: type[Settings]) -> Iterator[tuple[str, Any]]:
    """Yield the settings that the environment has: texts, and the values of those that are JSON."""
    environment = {name.upper(): value for name, value in os.environ.items()}
    for name, field in settings.model_fields.items():
        variable = PREFIX + name.upper()
        if variable not in environment:
            continue
        kinds = (field.annotation, *get_args(field.annotation))
        value = environment[variable]
        if not any(get_origin(kind) in (dict, tuple) for kind in kinds):
            yield name, value
            continue
        try:
            yield name, json.loads(value)
        except ValueError as error:
            raise NotJson(variable) from error
