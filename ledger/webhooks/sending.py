"""One message to one address: signed as Standard Webhooks says, and sent within a bounded time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

TIMEOUT_SECONDS = 15  # for one attempt, from the connection to the answer's headers
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"


def send(url: str, secret: bytes, *, webhook_id: str, body: bytes) -> str | None:
    """Send a message; return None if it was taken (an answer of 2xx), else why not.

    Redirects are not followed: the secret and the content are meant for this address.
    """
    from standardwebhooks import Webhook  # noqa: PLC0415 - an extra

    now = datetime.now(UTC)
    headers = {
        "Content-Type": CONTENT_TYPE,
        "User-Agent": "shuffle-ledger",
        "webhook-id": webhook_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(webhook_id, now, body.decode()),
    }
    return asyncio.run(_sent(url, headers, body))


async def _sent(url: str, headers: dict[str, str], body: bytes) -> str | None:
    import httpx  # noqa: PLC0415 - an extra

    try:
        async with (
            asyncio.timeout(TIMEOUT_SECONDS),
            httpx.AsyncClient(timeout=TIMEOUT_SECONDS, follow_redirects=False) as client,
            client.stream("POST", url, headers=headers, content=body) as answer,
        ):
            return None if answer.is_success else f"the answer was {answer.status_code}"
    except TimeoutError:
        return f"no answer within {TIMEOUT_SECONDS} seconds"
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
