"""Fields of a round or a cohort: from texts or JSON values to typed ones, naming what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from shuffle_ledger import accounting
from shuffle_ledger.cli.failures import BadValue
from shuffle_ledger.ledger.values import (
    DAY_EXPECTED,
    MOMENT_EXPECTED,
    NotADay,
    day_from,
    moment_from,
    read_json,
)

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,400}", re.ASCII)
_INTEGRAL = re.compile(r"[+-]?\d{1,400}(\.\d{0,400})?([eE][+-]?\d{1,3})?", re.ASCII)
_THOUSANDS = re.compile(r"[+-]?\d{1,3}([,.' _\u00a0\u2009\u202f\u2019]\d{3})+")
_DECIMAL_COMMA = re.compile(r"[+-]?\d{0,40},\d{1,40}", re.ASCII)
_DURATION = re.compile(r"0|(\d{1,8})([smhd])", re.ASCII)
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DIGITS_MAX = 400  # of a whole number


class Misread(ValueError):
    """A text that is not what its field takes, where it is known what was meant: its text says that."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of field.

    Attributes:
        expected: what the field takes, as a phrase.
        from_text: reads an option or a CSV cell; ValueError when it is something else.
        from_json: reads a JSON value; ValueError when it is something else.
    """

    expected: str
    from_text: Callable[[str], object]
    from_json: Callable[[object], object]

    def read(self, field: str, value: object, *, text: bool) -> object:
        """Returns the typed value of `field`; raises BadValue with the field's name otherwise."""
        try:
            return self.from_text(str(value).strip()) if text else self.from_json(value)
        except (Misread, NotADay) as meant:
            raise BadValue(field, value, str(meant)) from None
        except ValueError:
            raise BadValue(field, value, self.expected) from None


def whole_number(text: str) -> int:
    """Returns the integer that `text` spells: in decimal digits, or as a float without a fraction.

    30.000 is refused: it may be thirty thousand.
    """
    if _WHOLE.fullmatch(text):
        return int(text)
    if _THOUSANDS.fullmatch(text):
        raise Misread(f"a whole number without thousands separators, as {re.sub(r'[^0-9+-]', '', text)}")
    if not _INTEGRAL.fullmatch(text):
        raise ValueError(text)
    number = Decimal(text)
    if number.adjusted() > _DIGITS_MAX or number != number.to_integral_value():
        raise ValueError(text)
    return int(number)


def real_number(text: str) -> float:
    """Returns the float that `text` spells; NaN and infinities pass, for the field's own check to name."""
    if _DECIMAL_COMMA.fullmatch(text):
        raise Misread(f"a number with a decimal point, as {text.replace(',', '.')}")
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)


def start_of(text: str) -> datetime:
    """Returns the moment at which the day that `text` spells as YYYY-MM-DD begins, UTC."""
    return datetime.combine(day_from(text), time(), UTC)


def _since(text: str) -> datetime:
    if _DATE.match(text):  # its own sentence says what is wrong with the day
        return start_of(text) if _DATE.fullmatch(text) else moment_from(text)
    raise ValueError(text)


def _json_whole(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)  # in JSON 30000.0 and 30000 are one number
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    return value


def _json_real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(value)
    try:
        return float(value)
    except OverflowError:
        raise ValueError(value) from None


def _json_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _json_names(value: object) -> object:
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value
    return _json_text(value)


def _json_date(value: object) -> date:
    return day_from(_json_text(value))


def _json_randomizer(value: object) -> object:
    if not isinstance(value, str | Mapping):
        raise ValueError(value)
    return value


def _randomizer_text(text: str) -> object:
    """A call as it is, the JSON form as the object that it writes."""
    return read_json(text) if text.startswith("{") else text


def duration(text: str) -> timedelta:
    """Returns the duration that `text` spells: a number with its unit, 90s, 30m, 12h or 7d; or 0."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return timedelta() if text == "0" else timedelta(seconds=int(found[1]) * _UNIT_SECONDS[found[2]])


TEXT = Kind(expected="a text", from_text=str, from_json=_json_text)
AUDIENCE = Kind(
    expected="names of cohorts with | or commas between, or labels: device=phone,country=de",
    from_text=str,
    from_json=_json_names,
)
WHOLE = Kind(expected="a whole number", from_text=whole_number, from_json=_json_whole)
REAL = Kind(expected="a number", from_text=real_number, from_json=_json_real)
DATE = Kind(expected=DAY_EXPECTED, from_text=day_from, from_json=_json_date)
MOMENT = Kind(
    expected=MOMENT_EXPECTED,
    from_text=moment_from,
    from_json=lambda value: moment_from(_json_text(value)),
)
SINCE = Kind(
    expected=f"{DAY_EXPECTED}, or {MOMENT_EXPECTED}",
    from_text=_since,
    from_json=lambda value: moment_from(_json_text(value)),
)
DURATION = Kind(
    expected="a duration with its unit, as 90s, 30m, 12h or 7d; or 0",
    from_text=duration,
    from_json=lambda value: duration(_json_text(value)),
)
RANDOMIZER = Kind(
    expected="a randomizer such as krr(k=10, epsilon0=1.15), or its JSON form",
    from_text=_randomizer_text,
    from_json=_json_randomizer,
)

Fields = Mapping[str, Any]  # typed values by field name; a field that was not given is absent

ROUND_FIELDS: Mapping[str, Kind] = {
    "randomizer": RANDOMIZER,
    "reports": WHOLE,
    "sampled_from": WHOLE,
    "participation": REAL,
    "honest_fraction": REAL,
    "delta0": REAL,
    "analysis": TEXT,
    "reports_per_user": WHOLE,
}


# Of a registration, beside its name, its cohorts and its round.
REGISTRATION_FIELDS: Mapping[str, Kind] = {"collected_on": DATE, "use_case": TEXT, "collected_until": DATE}


def round_from_fields(fields: Fields) -> accounting.ShuffledRound:
    """Returns the round that `fields` describe.

    Raises:
        BadValue: for `sampled_from` together with `participation`.
        InvalidParameter: for whatever the accountant does not accept, or not yet.
    """
    if "sampled_from" in fields and "participation" in fields:
        raise BadValue("participation", fields["participation"], "it left out where sampled_from is given")
    return accounting.ShuffledRound.from_mapping(
        {name: fields[name] for name in ROUND_FIELDS if name in fields}
    )
