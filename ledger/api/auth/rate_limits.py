"""How often one address may show a wrong token: a bucket per address, and a bounded number of buckets."""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Callable

ADDRESSES_MAX = 10_000
REFILL_SECONDS = 2.0  # one more attempt after this long


class FailureLimit:
    """Counts failures by address; a failure is forgotten after a while. Used by one event loop."""

    def __init__(self, *, burst: int, clock: Callable[[], float]) -> None:
        self._burst = burst
        self._clock = clock
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how many, and when

    def wait_seconds(self, address: str) -> int:
        """Return how long the address has to wait before its next attempt; 0 when it may try now."""
        excess = self._left(_network(address)) - self._burst + 1
        return max(0, math.ceil(excess * REFILL_SECONDS))

    def count(self, address: str) -> None:
        """Count a failure; beyond 10,000 addresses the one that failed longest ago is forgotten."""
        network = _network(address)
        self._failures[network] = (min(self._left(network) + 1, self._burst), self._clock())
        self._failures.move_to_end(network)
        while len(self._failures) > ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def _left(self, network: str) -> float:
        number, moment = self._failures.get(network, (0.0, 0.0))
        return max(0.0, number - (self._clock() - moment) / REFILL_SECONDS)


def _network(address: str) -> str:
    """Return what one client has to himself: an IPv4 address, or the 64 bits that name an IPv6 network."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if parsed.version == 6 and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return str(parsed) if parsed.version == 4 else str(ipaddress.ip_network((parsed, 64), strict=False))
