"""Audiences: the cohorts that a round is of, and the labels that select them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values.texts import checked_text

AUDIENCE_MAX = 500  # cohorts of one round: each of them gets an entry that lists them all
LABELS_MAX = 32  # of one cohort


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
    pairs = [part.partition("=") for part in text.split(",")]
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
