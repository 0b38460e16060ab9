"""Decisions shown on the runs, on a real server."""

from __future__ import annotations

import pytest
from prefect.client.schemas.objects import FlowRun

from tests.worker.conftest import Pool
from xonar_prefect.core.decisions import (
    Hold,
    ReasonCode,
    Refuse,
    Release,
)
from xonar_prefect.core.models import Training
from xonar_prefect.worker.claims import Claims
from xonar_prefect.worker.explaining import DECISION_ARTIFACT, Explanations

pytestmark = pytest.mark.server


class Clock:
    """A clock that stands until it is moved on."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def explanations(pool: Pool, clock: Clock) -> Explanations:
    return Explanations(
        pool.client,
        Claims(pool.client, "one"),
        mark_after_seconds=5.0,
        mark_again_seconds=30.0,
        clock=clock,
    )


def training(run: FlowRun) -> Training:
    return Training(run_id=str(run.id), name=run.name, submitted_at_s=0.0)


def hold(run: FlowRun, code: ReasonCode = ReasonCode.NO_FREE_SLOT, reason: str = "Full.") -> Hold:
    return Hold(training=training(run), code=code, reason=reason)


async def show(
    explanations: Explanations, decision: Hold, run: FlowRun, *, markable: bool = True
) -> bool:
    """Show a hold as the worker does: only what is news costs anything."""
    if not explanations.has_news(decision, markable=markable):
        return False
    return await explanations.hold(decision, run, markable=markable)


async def test_the_reason_is_on_the_run_at_once_and_its_state_changes_only_after_a_while(
    pool: Pool, explanations: Explanations, clock: Clock
) -> None:
    run = await pool.submit()
    assert not await show(explanations, hold(run), run)
    labels = (await pool.read(run)).labels
    assert (labels["xonar.reason-code"], labels["xonar.reason"]) == ("NO_FREE_SLOT", "Full.")
    assert await pool.state(run) == "Scheduled"
    clock.now_s += 4.9
    assert not await show(explanations, hold(run), run)
    clock.now_s += 0.1
    assert await show(explanations, hold(run), run)
    assert await pool.state(run) == "AwaitingGPU"
    (artifact,) = await pool.artifacts(run, DECISION_ARTIFACT)
    assert artifact.description == "Full."


async def test_a_run_is_marked_again_when_another_kind_of_reason_has_stood_for_a_while(
    pool: Pool, explanations: Explanations, clock: Clock
) -> None:
    run = await pool.submit()
    await show(explanations, hold(run), run)
    clock.now_s += 10
    assert await show(explanations, hold(run), run)
    run = await pool.read(run)
    other = hold(run, ReasonCode.POOL_LIMIT, "The limit is reached.")
    assert not await show(explanations, other, run)
    clock.now_s += 29.9
    assert not await show(explanations, other, run)
    clock.now_s += 0.1
    assert await show(explanations, other, run)
    run = await pool.read(run)
    assert run.state is not None
    assert (run.state.name, run.state.message) == ("AwaitingGPU", "The limit is reached.")
    assert run.labels["xonar.reason-code"] == "POOL_LIMIT"
    clock.now_s += 600
    assert not await show(explanations, other, run)
    assert (await pool.read(run)).state_id == run.state_id


async def test_reasons_that_take_turns_do_not_write_a_run_again_and_again(
    pool: Pool, explanations: Explanations, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await pool.submit()
    await show(explanations, hold(run), run)
    clock.now_s += 10
    assert await show(explanations, hold(run), run)
    calls = 0
    request = pool.client.request

    async def counting(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        return await request(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pool.client, "request", counting)
    flapping = [
        hold(run, ReasonCode.BETTER_PARTNER_CHOSEN, "Another fits better."),
        hold(run, ReasonCode.POOL_LIMIT, "The limit is reached."),
        hold(run),
    ]
    for turn in range(300):  # ten minutes
        clock.now_s += 2
        assert not await show(explanations, flapping[turn % 3], run)
    # The sentence may be renewed once a minute, the state never.
    assert calls <= 10
    assert await pool.state(run) == "AwaitingGPU"


async def test_the_label_follows_a_reason_that_stands_and_a_sentence_that_has_grown_old(
    pool: Pool, explanations: Explanations, clock: Clock
) -> None:
    run = await pool.submit()
    await show(explanations, hold(run), run)
    clock.now_s += 5
    await show(explanations, hold(run), run)
    better = hold(run, ReasonCode.BETTER_PARTNER_CHOSEN, "Another fits better.")
    await show(explanations, better, run)
    assert await pool.code(run) == "NO_FREE_SLOT"
    clock.now_s += 5
    await show(explanations, better, run)
    assert await pool.code(run) == "BETTER_PARTNER_CHOSEN"
    artifacts = await pool.artifacts(run, DECISION_ARTIFACT)
    assert sorted(str(each.description) for each in artifacts) == ["Another fits better.", "Full."]
    clock.now_s += 60
    newer = hold(run, ReasonCode.BETTER_PARTNER_CHOSEN, "Yet another fits better.")
    await show(explanations, newer, run)
    assert (await pool.read(run)).labels["xonar.reason"] == "Yet another fits better."


async def test_a_run_that_must_not_be_claimed_has_its_reason_but_keeps_its_state(
    pool: Pool, explanations: Explanations, clock: Clock
) -> None:
    run = await pool.submit()
    for _ in range(2):
        assert not await show(explanations, hold(run), run, markable=False)
        clock.now_s += 10
    assert await pool.code(run) == "NO_FREE_SLOT"
    assert await pool.state(run) == "Scheduled"
    assert len(await pool.artifacts(run, DECISION_ARTIFACT)) == 1


async def test_what_an_earlier_life_of_the_worker_marked_is_not_marked_again(
    pool: Pool, explanations: Explanations, clock: Clock
) -> None:
    run = await pool.submit()
    await Claims(pool.client, "one").mark_held(run, "Full.")
    run = await pool.read(run)
    await show(explanations, hold(run), run)
    clock.now_s += 10
    assert not await show(explanations, hold(run), run)
    assert (await pool.read(run)).state_id == run.state_id


async def test_a_run_that_was_cancelled_in_the_meantime_is_not_marked(
    pool: Pool, explanations: Explanations, clock: Clock
) -> None:
    from prefect.states import Cancelled

    run = await pool.submit()
    await show(explanations, hold(run), run)
    await pool.client.set_flow_run_state(run.id, Cancelled())
    clock.now_s += 10
    assert not await show(explanations, hold(run), run)
    assert await pool.state(run) == "Cancelled"


async def test_a_run_that_is_no_longer_held_begins_anew(
    pool: Pool, explanations: Explanations, clock: Clock
) -> None:
    run = await pool.submit()
    await show(explanations, hold(run), run)
    explanations.keep_only(frozenset())
    clock.now_s += 10
    assert not await show(explanations, hold(run), run)


async def test_a_label_that_could_not_be_written_is_written_the_next_time(
    pool: Pool, explanations: Explanations, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    async def away(*_: object) -> None:
        raise httpx.ConnectError("away")

    run = await pool.submit()
    with monkeypatch.context() as patch:
        patch.setattr(pool.client, "update_flow_run_labels", away)
        with pytest.raises(httpx.ConnectError):
            await show(explanations, hold(run), run)
    await show(explanations, hold(run), run)
    assert await pool.code(run) == "NO_FREE_SLOT"


async def test_a_release_tells_both_partners_beside_whom_they_are_and_at_what_price(
    pool: Pool, explanations: Explanations
) -> None:
    run, partner = await pool.submit(), await pool.submit()
    release = Release(
        training=training(run),
        devices=("GPU-1", "GPU-2"),
        code=ReasonCode.COMPLEMENTS_PARTNER,
        reason="It fits.",
        predicted_slowdown=1.25,
    )
    await explanations.release(release, run, ("digits",))
    await explanations.joined(str(partner.id), [run.name], 1.5)
    beside = (await pool.read(partner)).labels
    assert (beside["xonar.partner"], beside["xonar.predicted-slowdown"]) == (run.name, "1.500")
    labels = (await pool.read(run)).labels
    assert labels["xonar.reason-code"] == "COMPLEMENTS_PARTNER"
    assert labels["xonar.devices"] == "GPU-1, GPU-2"
    assert (labels["xonar.partner"], labels["xonar.predicted-slowdown"]) == ("digits", "1.250")
    assert len(await pool.artifacts(run, DECISION_ARTIFACT)) == 1


async def test_a_refused_run_has_failed_with_the_reason(
    pool: Pool, explanations: Explanations
) -> None:
    run = await pool.submit()
    refuse = Refuse(training=training(run), code=ReasonCode.NEVER_FITS, reason="Too large.")
    assert await explanations.refuse(refuse, run)
    assert await pool.state(run) == "Refused"
    assert await pool.code(run) == "NEVER_FITS"
    (artifact,) = await pool.artifacts(run, DECISION_ARTIFACT)
    assert artifact.description == "Too large."
    assert not await explanations.refuse(refuse, run)  # once is enough
    assert await pool.state(run) == "Refused"
