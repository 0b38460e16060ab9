"""Makes a queue long without asking the server for every run: one run is copied in its database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa

_ROWS = 500


def copy_run(database: str, run_id: UUID, count: int) -> None:
    """Copy a scheduled run so many times, each copy due a moment later and marked late already.

    Args:
        database: SQLAlchemy address of the server's database, for a driver without async.
        run_id: The run.
        count: How many copies.
    """
    engine = sa.create_engine(database)
    tables = sa.MetaData()
    runs = sa.Table("flow_run", tables, autoload_with=engine)
    states = sa.Table("flow_run_state", tables, autoload_with=engine)
    key: Any = run_id if runs.c.id.type.python_type is UUID else str(run_id)
    with engine.begin() as connection:
        run = connection.execute(sa.select(runs).where(runs.c.id == key)).mappings().one()
        is_state = states.c.id == run["state_id"]
        state = connection.execute(sa.select(states).where(is_state)).mappings().one()
        kind = type(run["id"])
        for begin in range(0, count, _ROWS):
            copies, of_copies, pointers = [], [], []
            for number in range(begin, min(begin + _ROWS, count)):
                new, new_state = kind(str(uuid4())), kind(str(uuid4()))
                due = run["next_scheduled_start_time"] + timedelta(microseconds=number)
                copies.append(
                    {
                        **run,
                        "id": new,
                        "name": f"copy-{number}",
                        "state_id": None,
                        "state_name": "Late",
                        "next_scheduled_start_time": due,
                        "expected_start_time": due,
                    }
                )
                of_copies.append({**state, "id": new_state, "flow_run_id": new, "name": "Late"})
                pointers.append({"run": new, "state": new_state})
            connection.execute(runs.insert(), copies)
            connection.execute(states.insert(), of_copies)
            point = runs.update().where(runs.c.id == sa.bindparam("run"))
            connection.execute(point.values(state_id=sa.bindparam("state")), pointers)
    engine.dispose()
