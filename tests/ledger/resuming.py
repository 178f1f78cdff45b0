"""Replays every chain of a ledger from each of its entries, and compares that with a whole replay."""

from __future__ import annotations

from datetime import UTC, datetime

from shuffle_ledger.ledger.storage.store import Store
from shuffle_ledger.ledger.values.signing import SigningKey
from shuffle_ledger.ledger.values.verified_position import VerifiedPosition, read_position
from shuffle_ledger.ledger.verification.replay import Replay
from shuffle_ledger.ledger.verification.resumption import SOFTWARE, resumed, state_of

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
KEY = SigningKey.generate()


def assert_resumes_anywhere(store: Store) -> int:
    """Assert that a replay from any position follows as the whole one does; return how many there are."""
    positions = 0
    for name in store.cohort_names():
        whole = Replay(store=store, cohort=name)
        steps = {step.sequence: step for step in whole.steps()}
        chain = list(store.entries_of(name))
        begun = Replay(store=store, cohort=name)
        for number, entry in enumerate(chain, start=1):
            for _ in begun.steps([entry]):
                pass
            state = state_of(begun)
            if state is None:
                assert begun.problems or begun.frozen or not begun.trail.is_resumable
                continue
            position = VerifiedPosition(
                ledger_id=store.ledger_id(),
                cohort=name,
                sequence=entry.sequence,
                digest_hex=entry.digest.hex(),
                verified_at=MOMENT,
                replayed_at=MOMENT,
                software=SOFTWARE,
                state=state,
            )
            read = read_position(position.signed(KEY), KEY.public_key_bytes)
            again = resumed(store, read)
            assert again is not None
            for step in again.steps(chain[number:]):
                assert step == steps[step.sequence]
            assert _ended(again) == _ended(whole)
            positions += 1
    return positions


def _ended(replay: Replay) -> dict[str, object]:
    """Return what is left of a replay at the end that does not grow with the number of rounds."""
    names = (
        "entries",
        "head_sequence",
        "head_digest",
        "head_body",
        "overspent",
        "frozen",
        "opened",
        "losses",
    )
    trail = replay.trail
    state = None if trail.state is None else (trail.state.total, trail.state.limits, trail.is_overspent)
    return {
        **{name: getattr(replay, name) for name in (*names, "problems")},
        "held": +replay.held,
        "local": +replay.local,
        "kinds": +replay.kinds,
        "trail": (trail.policy, trail.frozen, state),
    }
