"""The database under the store: opened, migrated, read and written in transactions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, SQLAlchemyError
from sqlmodel import Session, create_engine

from xonar_prefect.errors import StoreTooNewError, StoreUnusableError
from xonar_prefect.store.tables import VERSION_TABLE

# SQLite waits so long for a lock, looking again and again. Longer would keep the worker from its
# trainings; what could not be written by then is written later.
_BUSY_TIMEOUT_SECONDS = 10
_BUSY_PAUSE_SECONDS = 0.02
# A server that is being restarted is there again soon.
_PAUSES_BEFORE_RETRY_SECONDS = (0.1, 0.4)
_MIGRATION_LOCK = 0x786F6E6172  # any number that nobody else takes; this one spells "xonar"
# SQLite takes the write lock at the start of a transaction with this option, and waits for it:
# a lock taken only at the first write fails at once where another writer has been faster.
_WRITES = {"xonar_writes": True}

_T = TypeVar("_T")


class Database:
    """An opened database with the current schema; safe to use from several threads."""

    def __init__(self, engine: Engine, address: str) -> None:
        self._engine = engine
        self._address = address

    @classmethod
    def open(cls, address: str) -> Database:
        """Open the database and bring its schema up to date.

        Raises:
            StoreTooNewError: A newer version of this package has written it.
            StoreUnusableError: It cannot be reached, read or written.
        """
        url = _url(address)
        shown = url.render_as_string(hide_password=True)
        try:
            if url.get_backend_name() == "sqlite":
                engine = _sqlite_engine(url, shown)
            else:
                engine = create_engine(url, pool_pre_ping=True)
            if engine.dialect.is_async:
                raise StoreUnusableError(shown, f"the driver {url.drivername} is asynchronous")
            database = cls(engine, shown)
            try:
                database._migrate()
            except BaseException:
                database.close()
                raise
        except (OSError, ImportError, SQLAlchemyError) as error:
            raise StoreUnusableError(shown, _cause(error)) from error
        return database

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Read in one transaction.

        Raises:
            StoreUnusableError: The database cannot be read.
        """
        try:
            with Session(self._engine) as session:
                yield session
        except SQLAlchemyError as error:
            raise StoreUnusableError(self._address, _cause(error)) from error

    def write(self, work: Callable[[Session], _T]) -> _T:
        """Do the work in one transaction, commit it and return its result.

        The work may be called again: where another worker inserts the same row at the same
        moment, the next attempt finds it; where the connection was lost, a new one is made.

        Raises:
            StoreUnusableError: The database cannot be written.
        """
        pauses_seconds = iter(_PAUSES_BEFORE_RETRY_SECONDS)
        while True:
            try:
                return self._write_once(work)
            except SQLAlchemyError as error:
                pause_seconds = next(pauses_seconds, None)
                if pause_seconds is None or not self._may_pass(error):
                    raise StoreUnusableError(self._address, _cause(error)) from error
            time.sleep(pause_seconds)

    def _may_pass(self, error: SQLAlchemyError) -> bool:
        """Tell whether trying again at once may help; SQLite has waited for its lock already."""
        is_sqlite = self._engine.dialect.name == "sqlite"
        return isinstance(error, IntegrityError) or (
            isinstance(error, OperationalError) and not is_sqlite
        )

    def _write_once(self, work: Callable[[Session], _T]) -> _T:
        with self._engine.connect() as connection:
            connection.execution_options(**_WRITES)
            with connection.begin(), Session(connection) as session:
                result = work(session)
                session.flush()
                return result

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _migrate(self) -> None:
        config = Config()
        config.set_main_option("script_location", "xonar_prefect.store:migrations")
        config.set_main_option("path_separator", "os")
        known = ScriptDirectory.from_config(config)
        head = known.get_current_head()
        with self._engine.connect() as connection:
            found = _revision(connection)
        if found == head:
            return
        if found is not None and found not in {each.revision for each in known.walk_revisions()}:
            raise StoreTooNewError(self._address, found, str(head))
        with self._engine.connect() as connection:
            connection.execution_options(**_WRITES)
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
                config.attributes["connection"] = connection
                command.upgrade(config, "head")


def _revision(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def _url(address: str) -> URL:
    try:
        url = make_url(address)
    except ArgumentError as error:
        raise StoreUnusableError(address, "that is no SQLAlchemy address") from error
    if url.drivername in {"postgres", "postgresql"}:
        return url.set(drivername="postgresql+psycopg")  # the driver that our extra installs
    return url


def _sqlite_engine(url: URL, shown: str) -> Engine:
    if url.database in {None, "", ":memory:"}:
        raise StoreUnusableError(shown, "a database in memory would be lost with its worker")
    if "uri" not in url.query:
        Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, connect_args={"timeout": _BUSY_TIMEOUT_SECONDS})

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: object) -> None:
        # The driver would begin transactions at moments of its own; we begin them ourselves.
        connection.isolation_level = None
        _log_ahead(connection)
        connection.execute("PRAGMA synchronous=NORMAL")

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        writes = _WRITES.items() <= connection.get_execution_options().items()
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Let readers and a writer go on beside each other; once is enough for a file.

    To change the mode takes the file for oneself, and SQLite does not wait for that as it waits for
    a writer: where several open a new file at once, one of them would fail.
    """
    deadline = time.monotonic() + _BUSY_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_BUSY_PAUSE_SECONDS)
        else:
            return


def _cause(error: Exception) -> str:
    """Return the driver's own words in one line."""
    original = getattr(error, "orig", None) or error
    return str(original).strip().splitlines()[0] if str(original).strip() else type(error).__name__
