"""Questions about permits: issue them, and settle by the receipts of releases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from shuffle_ledger.ledger.questions.fields import Body, Name, RoundId, config


@dataclass(frozen=True, kw_only=True)
class IssuePermit(Body):
    """For whom a permit is."""

    round_id: RoundId = field(kw_only=False)
    releaser: Annotated[Name | None, Field(description="The only gate that may use it; null: any.")] = None

    __pydantic_config__ = config(releaser="shuffler-eu")


@dataclass(frozen=True, kw_only=True)
class SettleByReceipt(Body):
    """A gate's receipt for a release: a signed token."""

    receipt: Annotated[str, Field(strict=True, min_length=1, max_length=1_000_000)] = field(kw_only=False)

    __pydantic_config__ = config(receipt="eyJhbGciOiJFZERTQSIs...")
