"""Audiences: the cohorts that a round is of, and the labels that select them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values.texts import checked_text

AUDIENCE_MAX = 500  # cohorts of one round: each of them gets an entry that lists them all
LABELS_MAX = 32  # of one cohort
# Between names or labels. Tables write | where commas are between cells; a text means the same everywhere.
_BETWEEN = re.compile(r"[,|]")
_MEANT_OTHERWISE = frozenset(",|=")  # in a text that names cohorts, or selects them by labels


def named_in(text: str) -> list[str]:
    """Return the parts of a list of names, or of labels, without the blanks around them."""
    return [part.strip() for part in _BETWEEN.split(text)]


def check_selectable(name: str, labels: Mapping[str, str]) -> None:
    """Raise InvalidValue for the name or the labels of a new cohort that a list or a selector cannot say."""
    if _MEANT_OTHERWISE & set(name):
        expected = "a name without , | and =, which lists of cohorts and selectors have between names"
        raise InvalidValue(field="name", value=name, expected=expected)
    if any("|" in text for pair in labels.items() for text in pair):
        expected = "names and values without |, which stands between the labels of a selector"
        raise InvalidValue(field="labels", value=dict(labels), expected=expected)


def checked_labels(labels: object) -> dict[str, str]:
    """Return labels with names and values as `checked_text`, in order of the names.

    Raises:
        InvalidValue: no mapping of texts, too many, or one with a comma or an equals sign.
    """
    expected = f"at most {LABELS_MAX} names with values, such as device=phone, without , and = in either"
    if not isinstance(labels, Mapping) or len(labels) > LABELS_MAX:
        raise InvalidValue(field="labels", value=labels, expected=expected)
    checked = {checked_text("label", name): checked_text("label", each) for name, each in labels.items()}
    if len(checked) != len(labels) or any(
        "," in text or "=" in text for pair in checked.items() for text in pair
    ):
        raise InvalidValue(field="labels", value=dict(labels), expected=expected)
    return dict(sorted(checked.items()))


def selected_labels(text: str) -> dict[str, str] | None:
    """Return the labels that a selector such as `device=phone,country=de` asks for; None of a text without
    an equals sign, which is no selector.

    Raises:
        InvalidValue: a part of it is no label with its value, or a label occurs twice.
    """
    if "=" not in text:
        return None
    pairs = [part.partition("=") for part in named_in(text)]
    wanted = {name: value for name, _, value in pairs}
    if len(wanted) != len(pairs) or not all(sign for _, sign, _ in pairs):
        expected = "labels with their values, each once: device=phone,country=de"
        raise InvalidValue(field="audience", value=text, expected=expected)
    return checked_labels(wanted)


def checked_audience(names: object) -> tuple[str, ...]:
    """Return names of cohorts in order, each as `checked_text` and once.

    Raises:
        InvalidValue: no list of names, or none, or too many of them.
    """
    expected = f"1 to {AUDIENCE_MAX} names of cohorts"
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidValue(field="audience", value=names, expected=expected)
    found = sorted({checked_text("audience", name) for name in names})
    if not 1 <= len(found) <= AUDIENCE_MAX:
        raise InvalidValue(field="audience", value=len(found), expected=expected)
    return tuple(found)
