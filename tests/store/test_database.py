"""The database is created, migrated, shared and refused as promised."""

from __future__ import annotations

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, event, inspect, text
from sqlalchemy.exc import OperationalError

from tests.disks import fill, mounted
from xonar_prefect.core.ledger import LedgerEntry, SlotState, Transition
from xonar_prefect.core.models import Observation, Profile
from xonar_prefect.core.quarantine import Quarantine
from xonar_prefect.errors import StoreTooNewError, StoreUnusableError
from xonar_prefect.store import Store, database
from xonar_prefect.store.tables import (
    VERSION_TABLE,
    LedgerRow,
    ObservationRow,
    ProfileRow,
    QuarantineRow,
    TransitionRow,
    metadata,
)

ENTRY = LedgerEntry(
    run_id="r",
    name="r",
    worker="one",
    state=SlotState.RESERVED,
    run_directory="/r",
    reserved_at_s=1.0,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "not" / "there" / "yet" / "store.db"


def address(file: Path) -> str:
    return f"sqlite:///{file}"


def test_directories_of_a_new_store_are_created(file: Path) -> None:
    with Store.open(address(file)) as store:
        assert store.profiles() == ()
    assert file.exists()


def test_store_can_be_opened_again(file: Path) -> None:
    for _ in range(2):
        Store.open(address(file)).close()


def test_readers_do_not_block_the_writer(file: Path) -> None:
    Store.open(address(file)).close()
    connection = sqlite3.connect(file)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_migrations_arrive_at_the_tables_that_the_code_uses(file: Path) -> None:
    Store.open(address(file)).close()
    engine = create_engine(address(file))
    with engine.connect() as connection:
        options = {"version_table": VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_migrations_can_be_taken_back(file: Path) -> None:
    Store.open(address(file)).close()
    engine = create_engine(address(file))
    config = Config()
    config.set_main_option("script_location", "xonar_prefect.store:migrations")
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert inspect(engine).get_table_names() == [VERSION_TABLE]
    engine.dispose()
    Store.open(address(file)).close()


def test_releases_of_the_first_version_are_kept_without_pool_and_host(file: Path) -> None:
    Store.open(address(file)).close()
    engine = create_engine(address(file))
    config = Config()
    config.set_main_option("script_location", "xonar_prefect.store:migrations")
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
        connection.execute(
            text(
                "INSERT INTO xonar_ledger (run_id, reserved_at_s, name, worker, state, devices,"
                " device_model, partners, code, reason, run_directory, co_runs) VALUES"
                " ('r', 1.0, 'owl', 'one', 'running', '[\"cpu-0\"]', 'core', '[]', '', '', 'd',"
                " '[]')"
            )
        )
    engine.dispose()
    with Store.open(address(file)) as store:
        (entry,) = store.open_entries("one", pool="gpus", host="box")
    assert (entry.devices, entry.pool, entry.host) == (("cpu-0",), None, None)


def test_migrations_of_another_application_in_the_same_database_are_left_alone(
    tmp_path: Path,
) -> None:
    file = tmp_path / "shared.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    connection.execute("INSERT INTO alembic_version VALUES ('theirs')")
    connection.commit()
    Store.open(address(file)).close()
    assert connection.execute("SELECT * FROM alembic_version").fetchall() == [("theirs",)]
    connection.close()


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (Profile, ProfileRow),
        (Observation, ObservationRow),
        (LedgerEntry, LedgerRow),
        (Transition, TransitionRow),
        (Quarantine, QuarantineRow),
    ],
)
def test_every_field_of_a_value_has_a_column(value: type, row: type) -> None:
    assert {field.name for field in fields(value)} <= set(row.model_fields)


def test_store_of_a_newer_version_is_refused_and_left_as_it_is(file: Path) -> None:
    Store.open(address(file)).close()
    connection = sqlite3.connect(file)
    connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.commit()
    with pytest.raises(StoreTooNewError, match=r"schema 9999, but .* only \d+; upgrade"):
        Store.open(address(file))
    assert connection.execute(f"SELECT * FROM {VERSION_TABLE}").fetchall() == [("9999",)]
    connection.close()


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    file.write_text("not a database, " * 100)
    with pytest.raises(StoreUnusableError, match="file is not a database; correct that"):
        Store.open(address(file))
    assert file.read_text().startswith("not a database")


def test_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StoreUnusableError, match="cannot be used"):
        Store.open(address(tmp_path / "taken" / "store.db"))


def test_store_that_may_only_be_read_says_so_when_written(file: Path) -> None:
    with Store.open(address(file)), Store.open(f"sqlite:///file:{file}?mode=ro&uri=true") as store:
        assert store.profiles() == ()
        with pytest.raises(StoreUnusableError, match="attempt to write a readonly database"):
            store.record_duration("kind", "V100", 1.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("store.db", "no SQLAlchemy address"),
        ("oracle9000://host/db", "oracle9000"),
        ("sqlite://", "in memory"),
        ("sqlite+aiosqlite:////tmp/never-made.db", "asynchronous"),
        ("postgresql://127.0.0.1:1/db", "cannot be used"),
    ],
)
def test_wrong_address_is_refused_in_one_sentence(wrong: str, said: str) -> None:
    with pytest.raises(StoreUnusableError, match=said) as caught:
        Store.open(wrong)
    assert "\n" not in str(caught.value)
    assert "XONAR_STORE_URL" in str(caught.value)


def test_password_is_not_shown() -> None:
    with pytest.raises(StoreUnusableError) as caught:
        Store.open("postgresql://me:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value)


def test_a_locked_database_is_waited_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store.open(address(file)).close()
    locker = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    locker.execute("BEGIN IMMEDIATE")
    with Store.open(address(file)) as store, ThreadPoolExecutor(1) as thread:
        writing = thread.submit(store.record_duration, "kind", "V100", 5.0)
        assert store.mean_duration("kind", "V100") is None  # readers do not wait
        locker.execute("COMMIT")
        writing.result()
        assert store.mean_duration("kind", "V100") == 5.0
    locker.close()


def test_a_database_that_stays_locked_says_so_and_is_written_later(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(address(file)).close()
    monkeypatch.setattr(database, "_BUSY_TIMEOUT_SECONDS", 0.05)
    locker = sqlite3.connect(file, isolation_level=None)
    locker.execute("BEGIN IMMEDIATE")
    with Store.open(address(file)) as store:
        with pytest.raises(StoreUnusableError, match="database is locked"):
            store.record_duration("kind", "V100", 5.0)
        locker.execute("COMMIT")
        store.record_duration("kind", "V100", 7.0)
        assert store.mean_duration("kind", "V100") == 7.0
    locker.close()


def use_up_the_log(store: Store) -> None:
    for number in range(2000):
        store.record_duration(f"kind-{number}", "V100", 5.0)


def test_a_full_disk_says_so_and_the_database_is_whole_afterwards(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk, Store.open(address(disk / "store.db")) as store:
        store.record_duration("kind", "V100", 5.0)
        filler = fill(disk)
        with pytest.raises(StoreUnusableError, match=r"full|disk I/O error"):
            use_up_the_log(store)
        assert store.mean_duration("kind", "V100") == 5.0
        filler.unlink()
        store.record_duration("kind", "V100", 7.0)
        assert store.mean_duration("kind", "V100") == 6.0


class Away:
    """A connection to a server that answers after so many attempts."""

    def __init__(self, attempts: int) -> None:
        self.attempts = attempts

    def refuse(self, *_: object) -> None:
        if self.attempts:
            self.attempts -= 1
            raise OperationalError("SELECT 1", {}, Exception("the database system is starting up"))


@pytest.mark.parametrize(("attempts", "written"), [(0, True), (2, True), (3, False)])
def test_a_server_that_is_restarted_is_asked_again_with_growing_pauses(
    file: Path, monkeypatch: pytest.MonkeyPatch, attempts: int, written: bool
) -> None:
    pauses: list[float] = []
    # Not the module's own function: other threads of this process sleep, too.
    monkeypatch.setattr(
        database, "time", SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)
    )
    with Store.open(address(file)) as store:
        engine = store._database._engine
        monkeypatch.setattr(engine.dialect, "name", "postgresql")  # whose locks are no waiting
        event.listen(engine, "begin", Away(attempts).refuse, insert=True)
        if written:
            store.record(ENTRY)
            assert store.entries() == (ENTRY,)
        else:
            with pytest.raises(StoreUnusableError, match="starting up"):
                store.record(ENTRY)
    assert pauses == [0.1, 0.4][:attempts]


def test_store_that_vanished_says_so(file: Path) -> None:
    store = Store.open(address(file))
    connection = sqlite3.connect(file)
    connection.execute("DROP TABLE xonar_ledger")
    connection.close()
    with pytest.raises(StoreUnusableError, match="no such table: xonar_ledger"):
        store.entries()
    store.close()
