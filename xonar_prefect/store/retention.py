"""What the store forgets because it is old: statements that remove a few rows at a time."""

from __future__ import annotations

from sqlalchemy import func, tuple_
from sqlmodel import Session, col, delete, select

from xonar_prefect.core.ledger import SlotState
from xonar_prefect.store.tables import (
    IngestedArtifactRow,
    LedgerRow,
    ObservationRow,
    QuarantineRow,
    TransitionRow,
)


def remove_ended(session: Session, before_s: float, limit: int) -> int:
    """Remove releases that ended before this time; one that never ran counts from its claim.

    The transitions of their slots go with them, and as many quarantines that ended before.
    """
    ended_at_s = func.coalesce(LedgerRow.ended_at_s, LedgerRow.reserved_at_s)
    key = (col(LedgerRow.run_id), col(LedgerRow.reserved_at_s))
    old = session.exec(
        select(*key)
        .where(LedgerRow.state == SlotState.ENDED.value, ended_at_s < before_s)
        .order_by(col(LedgerRow.reserved_at_s))
        .limit(limit)
    ).all()
    if old:
        session.exec(delete(LedgerRow).where(tuple_(*key).in_(old)))
        step = (col(TransitionRow.run_id), col(TransitionRow.reserved_at_s))
        session.exec(delete(TransitionRow).where(tuple_(*step).in_(old)))
    _remove_quarantines(session, before_s, limit)
    return len(old)


def _remove_quarantines(session: Session, before_s: float, limit: int) -> None:
    key = (
        col(QuarantineRow.host),
        col(QuarantineRow.device),
        col(QuarantineRow.cause),
        col(QuarantineRow.begun_at_s),
    )
    old = session.exec(
        select(*key)
        .where(col(QuarantineRow.ended_at_s) < before_s)
        .order_by(col(QuarantineRow.begun_at_s))
        .limit(limit)
    ).all()
    if old:
        session.exec(delete(QuarantineRow).where(tuple_(*key).in_(old)))


def remove_observations(session: Session, before_s: float, limit: int) -> int:
    """Remove co-runs that were measured before this time, and the notes that they were read."""
    old = session.exec(
        select(ObservationRow.artifact_id)
        .where(ObservationRow.observed_at_s < before_s)
        .order_by(col(ObservationRow.observed_at_s))
        .limit(limit)
    ).all()
    if old:
        for table in (ObservationRow, IngestedArtifactRow):
            session.exec(delete(table).where(col(table.artifact_id).in_(old)))
    return len(old)
