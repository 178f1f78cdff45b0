"""The conditions of a promise, in words: the same in every statement, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shuffle_ledger.accounting import ShuffledRound
from shuffle_ledger.ledger.values.windows import Period

PRIVACY_UNIT: Final = "one user's report in every round of the cohort: a user sends one report per round"
PRIVACY_UNIT_OF_SEVERAL: Final = (
    "one user's reports in every round of the cohort: a user sends at most as many reports as the round"
    " states, and one where it states no number"
)
NEIGHBOURS: Final = "substitution: two populations of the same size that differ in one user's data"

POLICY_UNKNOWN: Final = "This version of the software does not know what this policy assumes."


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Something a deployment must keep, and what becomes of the promise where it does not."""

    name: str
    holds_when: str
    otherwise: str


CONDITIONS: Final = (
    Condition(
        name="An honest shuffler",
        holds_when=(
            "Reports reach the analyst only as a shuffled batch, without names, times or addresses, and"
            " cannot be linked from round to round."
        ),
        otherwise="Only the local guarantee is left: what a user may lose is stated beside the budget.",
    ),
    Condition(
        name="Full batches",
        holds_when=(
            "The shuffler holds back a batch with fewer reports than were declared, or the round"
            " is settled with its true number before anything else is admitted."
        ),
        otherwise="Fewer people hide each other, and the round cost more than is stated.",
    ),
    Condition(
        name="Honest devices",
        holds_when=(
            "At least the declared fraction of the reports in each released batch comes from"
            " devices that randomize as told. Each of them sends one report, unless the kind"
            " states more. All randomize in the same way; or, of kinds in secret order, each by a"
            " randomizer that depends on nothing but its place and the messages before."
        ),
        otherwise="Reports that are not randomized hide nobody, and the round cost more than is stated.",
    ),
    Condition(
        name="A secret order",
        holds_when=(
            "Of kinds in secret order: the order of the devices is drawn uniformly at random"
            " before the first of them reports, and is kept secret."
        ),
        otherwise="Only the local guarantee is left.",
    ),
    Condition(
        name="Secret samples",
        holds_when="Where only a sample of users reports, nobody who sees results knows who was sampled.",
        otherwise=(
            "The sample protects nobody: the round costs as much as one of exactly those who reported."
        ),
    ),
    Condition(
        name="Taking part does not depend on the answer",
        holds_when="Whether a device reports at all does not depend on the value it would report.",
        otherwise="Silence is an answer too, and no number here accounts for it.",
    ),
    Condition(
        name="Decision before release",
        holds_when=(
            "Reports of a round are used only once it is admitted, and those of a refused round never."
        ),
        otherwise="Something was revealed that is not on this account.",
    ),
    Condition(
        name="Later corrections",
        holds_when=(
            "A number or a description that was recorded after the admission was fixed before the"
            " release. It did not depend on results seen between admission and release."
        ),
        otherwise="A round could have been made worse after a look at other results, beyond this account.",
    ),
    Condition(
        name="Everything is on the account",
        holds_when="Whatever is released about these users is a round of this cohort.",
        otherwise="Users who are in several cohorts lose what all of these spend, added up.",
    ),
)
# Stated where a cohort has rounds of several cohorts.
OF_AUDIENCES: Final = Condition(
    name="One cohort for each person",
    holds_when=(
        "Each person belongs to one cohort, and the data protected here do not decide which."
        " Reports of a round of several cohorts do not tell the cohort. A sample was uniform over"
        " the audience; or each cohort was sampled by itself, at most at the stated rate in each."
    ),
    otherwise=(
        "A person who was in several cohorts may lose the sum of their epsilons and of their"
        " deltas. Where reports tell the cohort, fewer people hide each other than is stated."
    ),
)
# Stated where a round may have several reports of a user.
OF_SEVERAL_REPORTS: Final = Condition(
    name="At most so many reports of each person",
    holds_when=(
        "No person sends more reports to a round than its kind states: reports beyond are dropped"
        " before the count. Each report is randomized anew. How many a person sends does not"
        " depend on the data protected here."
    ),
    otherwise="The round revealed more of that person than is stated.",
)
# Stated where a cohort counts a limited number of rounds of each user.
OF_CAPS: Final = Condition(
    name="A limited number of rounds",
    holds_when=(
        "No user's device takes part in more of the admitted rounds than the cohort says;"
        " incidents are charged beside these. Which rounds depends on the device's own counter, on"
        " chance and on what was published, never on the data it would send. Each user who is"
        " asked in a sampled round takes part."
    ),
    otherwise="A user may lose what all rounds cost together, which is not on this account.",
)
# Stated where a cohort has windows, or is a period of one.
OF_WINDOWS: Final = Condition(
    name="Days of collection",
    holds_when=(
        "All reports of a round were sent on the days that it states, in UTC. What a user sent on"
        " them was randomized for that round alone."
    ),
    otherwise=(
        "A round may be missing from the budget of a period that it belongs to. What is true of a"
        " user in every period, such as home or illness, is protected by the budget of the whole"
        " life only, and by none where there is no such budget. A stretch of time as long as one"
        " calendar period can touch two of them: twice the epsilon and twice the delta."
    ),
)


def unit_of_period(period: Period) -> str:
    """Return the privacy unit of a window's period: what may differ between two neighbouring populations."""
    described = f"these {period.kind}" if period.is_sliding else f"this UTC calendar {period.kind}"
    return (
        f"what one user sent in rounds of the cohort collected in {described}, {period.first} to"
        f" {period.last}, UTC: a user sends one report per round, or at most as many as the round states"
    )


def interaction_of(*readings: Mapping[ShuffledRound, int]) -> str:
    """Return how a cohort's rounds interact with its users, where the shuffler is not trusted.

    Args:
        readings: rounds whose reports may have been sent, with their numbers: as they count without the
            shuffler, and as they are charged. A correction may have changed one of the two alone.

    Source: The Role of Interactivity in Local Differential Privacy, Definitions 2.4 to 2.6.
    """
    reports = max(sum(count * kind.reports_per_user for kind, count in kinds.items()) for kinds in readings)
    return "sequentially interactive" if reports <= 1 else "fully interactive"


NEIGHBOURS_OF_PERIOD: Final = (
    "substitution: two populations of the same size that differ in what one user sent to these rounds; what"
    " the user sent to all others is the same"
)
