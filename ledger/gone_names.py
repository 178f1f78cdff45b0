"""Names that are gone: commands, options, fields and settings, each with what replaces it."""

from __future__ import annotations

from collections.abc import Mapping

_SIGN_IN = "a reverse proxy signs people in and sends the token of the issuer (docs/sign-in.md)"
_RESERVE = "one person raises a budget up to its ceiling (cohort budget NAME --epsilon E --reason TEXT)"
_FURTHER = "record an incident of each further cohort, or period such as COHORT@2026-W48, under a new --id"
_FIXED = (
    "--policy adaptive decides without a promise about how rounds are chosen; `compose` shows the composition"
    " of rounds fixed in advance"
)
_STRATA = "state sampled_from: reports divided by the largest rate of a cohort, rounded down"
_INTERACTION = (
    "the analysis says it: clone, the default of generic, holds in any secret order, also if devices react to"
    " earlier messages; clone-identical and tight want one randomizer on all devices, and so does every named"
    " randomizer, for which generic(epsilon0=E) stands where devices differ"
)
_WHOLE = "every verification reads whole chains, some thousand entries a second"
_PER = (
    "leave the budget of the life out: `cohort open NAME --per week --epsilon E --delta D` has budgets of"
    " periods alone (over HTTP, windows without epsilon and delta)"
)
_ALARM = "`health`, the metric shuffle_ledger_alarms and the alert rules in deploy/ say it (docs/webhooks.md)"
# A name as people write it, behind the command or the kind of body where others still have it.
GONE: Mapping[str, str] = {
    "reserve": _RESERVE,
    "reserve release": _RESERVE,
    "reserve approve": _RESERVE,
    "audit statement --format csv": "--format json has all numbers; a cohort's page gives its history as CSV",
    "--stratum": _STRATA,
    "--stratified": _STRATA,
    "stratified": _STRATA,
    "round correct --also-cohort": _FURTHER,
    "round correct --collected-on": _FURTHER,
    "round correct --collected-until": _FURTHER,
    "also_cohorts": _FURTHER,
    "CorrectRound.collected_on": _FURTHER,
    "CorrectRound.collected_until": _FURTHER,
    "--interaction": _INTERACTION,
    "interaction": _INTERACTION,
    "policy fixed": _FIXED,
    "cohort open --windows-only": _PER,
    "windows_only": _PER,
    "calibrate --policy fixed": "--policy composition asks for what it answered",
    "audit verify --since-verified": _WHOLE,
    "VerifyChains.entries": _WHOLE,
    "webhook add --kind broken": _ALARM,
    "webhook add --kind stuck": _ALARM,
    "round import --sheet": "workbooks are not read: save the sheet as CSV UTF-8",
    "SHUFFLE_LEDGER_OIDC_CLIENT_ID": _SIGN_IN,
    "SHUFFLE_LEDGER_OIDC_CLIENT_SECRET": _SIGN_IN,
    "SHUFFLE_LEDGER_OIDC_REDIRECT_URL": _SIGN_IN,
    "SHUFFLE_LEDGER_OIDC_SCOPES": _SIGN_IN,
}


def replacement(name: str, *, after: str = "") -> str | None:
    """Returns what replaces a name that is gone, as a sentence without a full stop; None: it never was one.

    `after`: the command whose option `name` is.
    """
    return GONE.get(f"{after} {name}", GONE.get(name))


def gone_sentence(name: str) -> str | None:
    """Returns the sentence without a full stop for a name that is gone; None: it never was one."""
    instead = replacement(name)
    return None if instead is None else f"{name} is gone: {instead}"
