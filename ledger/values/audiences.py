"""Audiences: the cohorts that a round is of, the labels that select them, and what was sampled of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.errors import InvalidValue
from shuffle_ledger.ledger.values.texts import POPULATION_MAX, checked_text

AUDIENCE_MAX = 500  # cohorts of one round: each of them gets an entry that lists them all
LABELS_MAX = 32  # of one cohort
# Between names or labels. Tables write | where commas are between cells; a text means the same everywhere.
_BETWEEN = re.compile(r"[,|]")
_MEANT_OTHERWISE = frozenset(",|=")  # in a text that names cohorts, or selects them by labels


@dataclass(frozen=True, kw_only=True)
class Stratum:
    """The sample of one cohort, for rounds that sample each cohort of their audience by itself."""

    cohort: str
    sampled: int  # users, drawn uniformly without replacement
    users: int  # of whom they were drawn


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


def strata_from(mapping: object) -> tuple[Stratum, ...]:
    """Return the strata that a mapping `{cohort: [sampled, users]}` spells, in order; raises InvalidValue."""
    expected = "for each cohort two whole numbers, [sampled, users], from 1, the second no smaller"
    if not isinstance(mapping, Mapping):
        raise InvalidValue(field="stratified", value=mapping, expected=expected)
    strata = []
    for name, pair in sorted(mapping.items()):
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2 and all(type(one) is int for one in pair)
        if not is_pair or not 1 <= pair[0] <= pair[1] <= POPULATION_MAX:
            raise InvalidValue(field="stratified", value={name: pair}, expected=expected)
        strata.append(Stratum(cohort=checked_text("stratified", name), sampled=pair[0], users=pair[1]))
    return tuple(strata)


def stratified_population(strata: Iterable[Stratum]) -> int:
    """Return the `sampled_from` of a round that samples cohorts by themselves.

    **Guarantee**: reports divided by it are at least the largest sampling rate of any cohort.
    """
    strata = tuple(strata)
    reports = sum(one.sampled for one in strata)
    return min(reports * one.users // one.sampled for one in strata)


def check_sampled(strata: Sequence[Stratum], audience: Sequence[str], reports: int) -> None:
    """Raise InvalidValue unless strata are those of an audience, and have as many reports as a round."""
    if [one.cohort for one in strata] != list(audience):
        expected = "numbers for every cohort of the audience, and no other"
        named = [one.cohort for one in strata]
        raise InvalidValue(field="stratified", value=named, expected=expected)
    strata_from({one.cohort: [one.sampled, one.users] for one in strata})
    sampled = sum(one.sampled for one in strata)
    if reports != sampled:
        expected = f"as many as are sampled of all cohorts together, {sampled}"
        raise InvalidValue(field="reports", value=reports, expected=expected)


def is_proven_of_strata(described: ShuffledRound) -> bool:
    """Return whether a round may be charged as it is described where each cohort was sampled by itself.

    Without a sample every round may. With one, nothing is proven about a share of honest devices, a secret
    order or several reports of a user.
    """
    is_plain = described.honest_fraction == 1 and described.reports_per_user == 1
    return described.sampled_from is None or (is_plain and not described.is_sequential)


def check_strata(strata: Sequence[Stratum], audience: Sequence[str], described: ShuffledRound) -> None:
    """Raise InvalidValue unless strata are those of an audience, and a round is what follows from them."""
    check_sampled(strata, audience, described.reports)
    if described.sampled_from != (population := stratified_population(strata)):
        expected = f"{population}: reports divided by it are the largest sampling rate of a cohort"
        raise InvalidValue(field="sampled_from", value=described.sampled_from, expected=expected)
    unproven = "where cohorts are sampled by themselves"
    if described.honest_fraction < 1:
        expected = f"1: nothing is proven about a share of honest devices {unproven}"
        raise InvalidValue(field="honest_fraction", value=described.honest_fraction, expected=expected)
    if described.reports_per_user > 1:
        expected = "1 with stratified: several reports of a user earn no credit for samples; leave it out"
        raise InvalidValue(field="reports_per_user", value=described.reports_per_user, expected=expected)
    if described.is_sequential:
        expected = f"identical: nothing is proven about a secret order {unproven}"
        raise InvalidValue(field="interaction", value=described.interaction, expected=expected)
