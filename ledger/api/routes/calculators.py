"""Routes of the calculators: amplify, compose, calibrate. They read no cohort and leave no trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse

from shuffle_ledger.accounting import Accountant
from shuffle_ledger.ledger.access import Permission
from shuffle_ledger.ledger.api.dependencies import Asked, Needs, Service
from shuffle_ledger.ledger.api.description import ANSWERS, answers
from shuffle_ledger.ledger.api.problems import TOO_LARGE, problem
from shuffle_ledger.ledger.api.schemas.calculators import AmplifyRound, CalibrateRounds, ComposeRounds
from shuffle_ledger.ledger.api.schemas.strict_body import StrictRoute
from shuffle_ledger.ledger.errors import TryAgain
from shuffle_ledger.ledger.reports import calibrate
from shuffle_ledger.ledger.values.calculations import (
    amplification_document,
    attack_on,
    calibrated_error,
    calibration_document,
    certified,
    composition_document,
    few_honest,
)
from shuffle_ledger.ledger.values.documents import Json, document_of

QUESTION_MAX = 1 << 16  # characters of the canonical form of a question; a larger one would take very long

router = APIRouter(
    prefix="/v1",
    tags=["calculators"],
    route_class=StrictRoute,
    dependencies=[Depends(Needs(Permission.READ))],  # of any cohorts: nothing of them is in an answer
)


@router.post("/amplify", responses=answers(200, ANSWERS.amplification, "The certified interval."))
async def amplify(body: AmplifyRound, service: Asked) -> JSONResponse:
    """Bound the privacy loss of one round, as the command `amplify --json` does."""
    described, delta, epsilon = body.round(), body.delta, body.epsilon

    def work(accountant: Accountant) -> Json:
        certificate, of = certified(accountant, {described: 1}, delta=delta, epsilon=epsilon)
        attacked = attack_on(described, certificate, of=of)
        third = few_honest(accountant, described, certificate, of=of)
        return amplification_document(described, certificate, attacked, third, of=of)

    # As given: attacks are on the randomizer that was named, also where two are accounted alike.
    question = {"round": document_of(described.asked_mapping()), "delta": delta, "epsilon": epsilon}
    return await _calculated(service, "amplify", question, work)


@router.post("/compose", responses=answers(200, ANSWERS.composition, "The certified interval."))
async def compose(body: ComposeRounds, service: Asked) -> JSONResponse:
    """Bound the privacy loss of many rounds together, as the command `compose --json` does."""
    rounds, delta, epsilon = body.counted(), body.delta, body.epsilon

    def work(accountant: Accountant) -> Json:
        certificate, of = certified(accountant, rounds, delta=delta, epsilon=epsilon)
        return composition_document(rounds, certificate, of=of)

    listed: list[Json] = [[document_of(each), count] for each, count in rounds.items()]
    return await _calculated(service, "compose", {"rounds": listed, "delta": delta, "epsilon": epsilon}, work)


@router.post("/calibrate", responses=answers(200, ANSWERS.calibration, "The parameter and its proof."))
async def calibrate_(body: CalibrateRounds, service: Asked) -> JSONResponse:
    """Find the largest epsilon0, or the least common noise, with which rounds meet a target, as the command
    `calibrate --json` does without a cohort."""
    described = body.described()
    target: dict[str, Json] = body.model_dump(include={"epsilon", "delta", "rounds", "policy"})

    def work(_accountant: Accountant) -> Json:
        found = calibrate(described, **target)  # type: ignore[arg-type]  # the schema checked each of them
        return calibration_document(found, calibrated_error(found))

    return await _calculated(service, "calibrate", {"round": document_of(described), **target}, work)


async def _calculated(
    service: Service, name: str, question: Mapping[str, Json], work: Callable[[Accountant], Json]
) -> JSONResponse:
    """Answer a question, computed once for all who ask it.

    Raises:
        TryAgain: too many others wait, or it takes longer than `decision_timeout_seconds`. In the second case
            the computation continues, and the same question gets its answer later.
    """
    key = json.dumps([name, question], sort_keys=True)
    if len(key) > QUESTION_MAX:
        detail = f"The question, written out, may have at most {QUESTION_MAX} characters; it has {len(key)}."
        return problem(TOO_LARGE, detail)

    async def computed() -> Json:
        return await service.calculating.run(work)

    try:
        async with asyncio.timeout(service.settings.decision_timeout_seconds):
            return JSONResponse(await service.calculations.get(key, computed))
    except TimeoutError:
        raise TryAgain("the answer is still being computed; ask the same again later") from None
