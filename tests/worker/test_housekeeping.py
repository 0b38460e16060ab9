"""Housekeeping: its chores in small steps with rests between, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import anyio
import httpx
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import ArtifactCreate

from tests.worker.conftest import Pool, Working
from tests.worker.waiting import eventually
from xonar_prefect.core.ledger import LedgerEntry, SlotState
from xonar_prefect.errors import StoreUnusableError
from xonar_prefect.settings import XonarSettings
from xonar_prefect.store import Store
from xonar_prefect.worker.housekeeping import Housekeeping, Step, housekeeping

DAY = 86_400.0


class Diary:
    """Writes down what is done and how long is rested; ends the third round."""

    def __init__(self) -> None:
        self.lines: list[str | float] = []
        self.rounds = 0

    async def sleep(self, seconds: float) -> None:
        self.lines.append(seconds)
        self.rounds += seconds > 1000
        if self.rounds == 2:
            raise anyio.ClosedResourceError  # in place of the worker's end

    def chore(self, name: str, *outcomes: bool | Exception) -> Step:
        left = list(outcomes)

        async def step() -> bool:
            self.lines.append(name)
            outcome = left.pop(0) if left else False
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return step

    async def keep(self, **chores: Step) -> list[str | float]:
        with pytest.raises(anyio.ClosedResourceError):
            await Housekeeping(chores, sleep=self.sleep).serve()
        return self.lines


@pytest.fixture
def diary() -> Diary:
    return Diary()


async def test_chores_are_done_in_small_steps_with_rests_between(diary: Diary) -> None:
    first = diary.chore("a", True, True, False)
    lines = await diary.keep(a=first, b=diary.chore("b"))
    hours = 6 * 3600.0
    once = [2.0, "a", "b", hours]
    assert lines == [2.0, "a", 2.0, "a", 2.0, "a", "b", hours, *once]


@pytest.mark.parametrize(
    "wrong",
    [
        httpx.ConnectError("refused"),
        StoreUnusableError("sqlite:///store.db", "database is locked"),
        PermissionError(13, "Permission denied"),
        RuntimeError("a fault of ours"),
    ],
)
async def test_whatever_goes_wrong_is_said_and_keeps_no_other_chore(
    diary: Diary, caplog: pytest.LogCaptureFixture, wrong: Exception
) -> None:
    lines = await diary.keep(a=diary.chore("a", wrong), b=diary.chore("b"))
    assert [line for line in lines if isinstance(line, str)] == ["a", "b", "a", "b"]
    assert "Old a are not removed this time" in caplog.text


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


Chores = Callable[..., dict[str, Step]]


@pytest.fixture
def chores(store: Store, tmp_path: Path) -> Chores:
    def chores(now_s: float = 0.0, **settings: float) -> dict[str, Step]:
        made = housekeeping(
            cast("PrefectClient", None),
            store,
            XonarSettings(home=tmp_path, **settings),  # type: ignore[arg-type]
            pool="gpus",
            clock=lambda: now_s,
        )
        return dict(made._chores)

    return chores


def test_what_is_to_be_kept_for_ever_is_no_chore(chores: Chores) -> None:
    assert set(chores()) == {
        "run directories",
        "artifacts",
        "ledger entries",
        "observations",
        "artifacts of observations",
    }
    nothing = chores(
        keep_runs_days=0, keep_artifacts_days=0, keep_ledger_days=0, keep_observations_days=0
    )
    assert nothing == {}


async def test_ledger_entries_go_after_their_days_in_portions(
    store: Store, chores: Chores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xonar_prefect.worker.housekeeping._ROWS", 2)
    for number in range(6):
        ended_at_s = number * DAY
        store.record(
            LedgerEntry(
                run_id=f"r{number}",
                name="r",
                worker="one",
                state=SlotState.ENDED,
                run_directory="/r",
                reserved_at_s=ended_at_s,
                ended_at_s=ended_at_s,
            )
        )
    step = chores(now_s=10 * DAY, keep_ledger_days=6.5)["ledger entries"]
    assert [await step(), await step(), await step()] == [True, True, False]
    assert {entry.run_id for entry in store.entries()} == {"r4", "r5"}


@pytest.mark.server
async def test_a_worker_cleans_up_after_a_run_and_keeps_its_profile(
    pool: Pool, working: Working, settings: XonarSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xonar_prefect.worker.housekeeping._BETWEEN_STEPS_SECONDS", 0.02)
    monkeypatch.setattr("xonar_prefect.worker.housekeeping._BETWEEN_ROUNDS_SECONDS", 0.1)
    at_once = {"keep_runs_days": 1e-9, "keep_artifacts_days": 1e-9, "keep_ledger_days": 1e-9}
    runs = settings.home / "runs"
    async with working(settings=settings.model_copy(update=at_once)) as worker:
        store = worker._parts.dispatch._store
        running = await pool.succeed("wait=gate", memory_request_mib=50)
        ended = await pool.succeed(memory_request_mib=50)
        profile = await pool.client.create_artifact(
            ArtifactCreate(key="xonar-profile-x", type="markdown", data="-", flow_run_id=ended.id)
        )

        async def is_gone() -> bool:
            if await pool.state(running) != "Running" or await pool.state(ended) != "Completed":
                return False
            left = {path.name[:36] for path in runs.iterdir()}
            known = {entry.run_id for entry in store.entries()}
            return (
                left == known == {str(running.id)}
                and not await pool.artifacts(ended, "xonar-decision")
                # Told beside the launch, and kept as long as its run has not ended.
                and bool(await pool.artifacts(running, "xonar-decision"))
            )

        await eventually(is_gone)
        assert await pool.artifacts(ended, "xonar-profile-x") == [profile]
        pool.open("gate")
