"""Releases, the transitions of their slots, and quarantines of devices as rows."""

from __future__ import annotations

from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from xonar_prefect.core.codec import (
    ledger_entry_from_dict,
    ledger_entry_to_dict,
    quarantine_from_dict,
    quarantine_to_dict,
    transition_from_dict,
    transition_to_dict,
)
from xonar_prefect.core.ledger import LedgerEntry, SlotState, Transition
from xonar_prefect.core.quarantine import Quarantine
from xonar_prefect.store.tables import LedgerRow, QuarantineRow, TransitionRow


def record(session: Session, entry: LedgerEntry) -> None:
    """Write a release down, and the transition where its state is another one than before."""
    row = session.get(LedgerRow, (entry.run_id, entry.reserved_at_s), with_for_update=True)
    if row is None or row.state != entry.state.value:
        session.add(TransitionRow(**transition_to_dict(Transition.to_state_of(entry))))
    session.merge(LedgerRow(**ledger_entry_to_dict(entry)))


def entries(
    session: Session,
    *,
    limit: int | None = None,
    run_id: str | None = None,
    worker: str | None = None,
    pool: str | None = None,
    host: str | None = None,
    only_open: bool = False,
) -> tuple[LedgerEntry, ...]:
    """Return releases, newest first; all of them, or those that match what is given."""
    newest_first = (col(LedgerRow.reserved_at_s).desc(), col(LedgerRow.run_id))
    statement: SelectOfScalar[LedgerRow] = select(LedgerRow).order_by(*newest_first).limit(limit)
    if only_open:
        statement = statement.where(LedgerRow.state != SlotState.ENDED.value)
    if run_id is not None:
        statement = statement.where(LedgerRow.run_id == run_id)
    if worker is not None:
        statement = statement.where(LedgerRow.worker == worker)
    for column, wanted in ((LedgerRow.pool, pool), (LedgerRow.host, host)):
        if wanted is not None:
            # Earlier versions did not note it: then it may be the one that is asked for.
            statement = statement.where((col(column) == wanted) | col(column).is_(None))
    return tuple(ledger_entry_from_dict(row.model_dump()) for row in session.exec(statement))


def transitions(
    session: Session, *, limit: int | None, run_id: str | None
) -> tuple[Transition, ...]:
    """Return the latest transitions in the order in which they were written."""
    statement = select(TransitionRow).order_by(col(TransitionRow.number).desc()).limit(limit)
    if run_id is not None:
        statement = statement.where(TransitionRow.run_id == run_id)
    rows = session.exec(statement).all()
    return tuple(transition_from_dict(row.model_dump()) for row in reversed(rows))


def record_quarantine(session: Session, quarantine: Quarantine) -> None:
    """Write a quarantine down, replacing what was known of it."""
    session.merge(QuarantineRow(**quarantine_to_dict(quarantine)))


def quarantines(
    session: Session, host: str, *, only_open: bool, since_s: float | None
) -> tuple[Quarantine, ...]:
    """Return a host's quarantines in the order in which they began."""
    statement = select(QuarantineRow).where(QuarantineRow.host == host)
    if only_open:
        statement = statement.where(col(QuarantineRow.ended_at_s).is_(None))
    if since_s is not None:
        statement = statement.where(QuarantineRow.begun_at_s >= since_s)
    ordered = statement.order_by(
        col(QuarantineRow.begun_at_s), col(QuarantineRow.device), col(QuarantineRow.cause)
    )
    return tuple(quarantine_from_dict(row.model_dump()) for row in session.exec(ordered))
