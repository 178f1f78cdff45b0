"""Names by which tests of other folders know these functions."""

from tests.ledger.attack import disarmed, rewrite

__all__ = ["disarmed", "rewrite"]
