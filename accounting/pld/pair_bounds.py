"""The privacy loss of one round: a pair above and a pair below its profile, and their stored form."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from shuffle_ledger.accounting.errors import DamagedPrivacyLoss
from shuffle_ledger.accounting.numeric.later import np
from shuffle_ledger.accounting.pld.distribution import NEGLIGIBLE_DELTA, PrivacyLossDistribution, Side

SIDES: tuple[Side, Side] = ("upper", "lower")  # of the two pairs that enclose a round's profile
# The stored form: this name, a checksum and the body's length, then for each pair its head and its arrays.
# Frozen: stored losses must stay readable.
_MAGIC = b"shuffle-ledger privacy loss 1\n"
_ENVELOPE = "<IQ"  # checksum and length of the body
_HEAD = "<Qdddd"  # number of losses, spacing, mass at 0, mass at infinity, support


@dataclass(frozen=True, eq=False, kw_only=True)
class RoundLoss:
    """A pair above and a pair below one round's privacy profile."""

    upper: PrivacyLossDistribution
    lower: PrivacyLossDistribution

    @property
    def nbytes(self) -> int:
        """Returns the memory of the arrays in bytes."""
        pairs = (self.upper, self.lower)
        return sum(column.nbytes for pair in pairs for column in (pair.index, pair.p, pair.q))

    @property
    def certain(self) -> float:
        """Returns an upper bound on the probability that the round reveals everything.

        It is 0 for rounds that never do, although their upper pair counts very large or improbable losses as
        infinite.
        """
        return self.upper.infinity if self.lower.infinity > NEGLIGIBLE_DELTA else 0.0

    def side(self, side: Side) -> PrivacyLossDistribution:
        """Returns the pair of that side."""
        return self.upper if side == "upper" else self.lower

    def to_bytes(self) -> bytes:
        """Returns versioned bytes that `from_bytes` reads; equal losses give equal bytes."""
        body = b"".join(_pack(pair) for pair in (self.upper, self.lower))
        return _MAGIC + struct.pack(_ENVELOPE, zlib.crc32(body), len(body)) + body

    @classmethod
    def from_bytes(cls, data: bytes) -> RoundLoss:
        """Reads the loss that `to_bytes` wrote.

        Raises:
            DamagedPrivacyLoss: the bytes have another format, are incomplete, or do not match their checksum.
        """
        head = len(_MAGIC) + struct.calcsize(_ENVELOPE)
        if len(data) < head or not data.startswith(_MAGIC):
            raise DamagedPrivacyLoss("stored privacy loss: expected it to begin with its format's name")
        checksum, length = struct.unpack(_ENVELOPE, data[len(_MAGIC) : head])
        body = data[head:]
        if len(body) != length or zlib.crc32(body) != checksum:
            raise DamagedPrivacyLoss(
                "stored privacy loss: its bytes do not match their checksum; compute it again"
            )
        try:
            upper, rest = _unpack(body, "upper")
            lower, rest = _unpack(rest, "lower")
        except (struct.error, ValueError) as error:
            raise DamagedPrivacyLoss(f"stored privacy loss: {error}") from error
        if rest:
            raise DamagedPrivacyLoss("stored privacy loss: bytes follow its end")
        return cls(upper=upper, lower=lower)


def _pack(pair: PrivacyLossDistribution) -> bytes:
    head = struct.pack(_HEAD, pair.index.size, pair.spacing, pair.zero, pair.infinity, pair.support)
    columns = (pair.index.astype("<i8"), pair.p.astype("<f8"), pair.q.astype("<f8"))
    return head + b"".join(column.tobytes() for column in columns)


def _unpack(data: bytes, side: Side) -> tuple[PrivacyLossDistribution, bytes]:
    size, spacing, zero, infinity, support = struct.unpack_from(_HEAD, data)
    start = struct.calcsize(_HEAD)
    end = start + 24 * size
    if len(data) < end:
        raise ValueError("fewer masses than announced")
    pair = PrivacyLossDistribution(
        spacing=spacing,
        index=np.frombuffer(data, "<i8", size, start).astype(np.int64),
        p=np.frombuffer(data, "<f8", size, start + 8 * size).astype(np.float64),
        q=np.frombuffer(data, "<f8", size, start + 16 * size).astype(np.float64),
        zero=zero,
        infinity=infinity,
        support=support,
        side=side,
    )
    return pair, data[end:]
