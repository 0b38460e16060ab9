from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from xonar_prefect.core.ledger import CoRun, LedgerEntry, SlotState
from xonar_prefect.run_directory import RunDirectory, Status
from xonar_prefect.worker import labels

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("prefect_server")]


def running_state():
    from prefect.states import Running

    return Running()


def test_empty_pool_says_so_and_how_to_serve_it(xonar, pool) -> None:
    ended = xonar("queue", "--pool", pool.name)
    assert ended.status == 0
    assert f"Nothing runs in pool '{pool.name}'." in ended.words
    assert f"Nothing is held in pool '{pool.name}'." in ended.words
    assert f"xonar worker start --pool {pool.name}" in ended.words


def test_held_runs_stand_in_the_order_of_the_queue_with_their_reason(xonar, pool) -> None:
    reason = "needs 900 MiB, 300 MiB are free on cpu-0"
    told = {labels.REASON_CODE: "INSUFFICIENT_MEMORY", labels.REASON: reason}
    first = pool.submit("wise-owl", told)
    pool.submit("sly-fox")
    (shown,) = xonar("queue", "--pool", pool.name, "--json").json
    assert [(each["position"], each["name"]) for each in shown["held"]] == [
        (1, "wise-owl"),
        (2, "sly-fox"),
    ]
    assert shown["held"][0]["run_id"] == first
    assert shown["held"][0]["reason_code"] == "INSUFFICIENT_MEMORY"
    assert shown["held"][0]["reason"] == reason
    assert shown["held"][1]["reason"] is None
    assert reason in xonar("queue", "--pool", pool.name).words


@pytest.mark.parametrize("code", ["LEAST_COMPLETION_TIME", "NEVER_FITS"])
def test_held_run_is_never_shown_with_the_reason_of_its_release_or_refusal(
    xonar, pool, code: str
) -> None:
    from prefect.states import Scheduled

    told = {labels.REASON_CODE: code, labels.REASON: "Released to CPU core 0."}
    requeued = "Requeued: Its worker was stopped."
    pool.submit("put-back", told, state=Scheduled(name="AwaitingGPU", message=requeued))
    pool.submit("tried-again", told, state=Scheduled(message="Retry from the UI"))
    (shown,) = xonar("queue", "--pool", pool.name, "--json").json
    reasons = {each["name"]: (each["reason_code"], each["reason"]) for each in shown["held"]}
    assert reasons == {"put-back": (None, requeued), "tried-again": (None, None)}
    words = xonar("queue", "--pool", pool.name).words
    assert requeued in words
    assert "Released to" not in words


def test_run_that_was_put_back_and_is_not_due_yet_is_shown_with_when_it_is(xonar, pool) -> None:
    from prefect.states import Scheduled

    due = datetime.now(timezone.utc) + timedelta(minutes=5)
    reason = "Requeued: It ran out of memory."
    pool.submit("pausing", state=Scheduled(name="AwaitingGPU", message=reason, scheduled_time=due))
    pool.submit("some-other-night", state=Scheduled(scheduled_time=due))
    (shown,) = xonar("queue", "--pool", pool.name, "--json").json
    assert shown["held"] == []
    (back,) = shown["coming_back"]
    assert (back["name"], back["reason"]) == ("pausing", reason)
    assert 0 < back["due_in_s"] <= 300
    words = xonar("queue", "--pool", pool.name).words
    assert "pausing comes back in" in words
    assert reason in words
    assert "some-other-night" not in words


def test_run_that_can_never_start_is_shown_with_its_mistake(xonar, pool) -> None:
    pool.submit("misspelt", job_variables={"memory_reqest_mib": 5})
    (shown,) = xonar("queue", "--pool", pool.name, "--json").json
    assert shown["held"] == []
    assert [each["name"] for each in shown["refused"]] == ["misspelt"]
    assert "memory_request_mib" in shown["refused"][0]["reason"]


def test_running_pair_of_this_host_shows_partner_and_progress(
    xonar, pool, store, tmp_path: Path
) -> None:
    runs = {name: pool.submit(name, state=running_state()) for name in ("wise-owl", "sly-fox")}
    for name, run_id in runs.items():
        (tmp_path / name).mkdir()
        (partner,) = set(runs.values()) - {run_id}
        store.record(
            LedgerEntry(
                run_id=run_id,
                name=name,
                worker="w",
                state=SlotState.RUNNING,
                devices=("cpu-0",),
                # The owl was there first, and nothing was predicted for it when it was released.
                partners=(partner,) if name == "sly-fox" else (),
                predicted_slowdown=1.25 if name == "sly-fox" else None,
                co_runs=(CoRun(partners=(partner,), predicted_slowdown=1.5),)
                if name == "wise-owl"
                else (),
                run_directory=str(tmp_path / name),
                reserved_at_s=1.0,
            )
        )
    status = Status(phase="training", steps_done=30, steps_total=100)
    RunDirectory(tmp_path / "wise-owl").write(status)
    (shown,) = xonar("queue", "--pool", pool.name, "--json").json
    owl = next(each for each in shown["running"] if each["name"] == "wise-owl")
    assert (owl["devices"], owl["partners"], owl["progress"]) == (["cpu-0"], ["sly-fox"], "30/100")
    words = xonar("queue", "--pool", pool.name).words
    assert "wise-owl Running cpu-0 sly-fox 1.50 30/100" in words
    assert "sly-fox Running cpu-0 wise-owl 1.25" in words


def test_training_whose_partner_has_ended_has_no_predicted_slowdown(
    xonar, pool, store, tmp_path: Path
) -> None:
    run_id = pool.submit("left-alone", state=running_state())
    store.record(
        LedgerEntry(
            run_id=run_id,
            name="left-alone",
            worker="w",
            state=SlotState.RUNNING,
            devices=("cpu-0",),
            partners=("gone",),
            predicted_slowdown=1.25,
            run_directory=str(tmp_path),
            reserved_at_s=1.0,
        )
    )
    (shown,) = xonar("queue", "--pool", pool.name, "--json").json
    assert shown["running"][0]["predicted_slowdown"] is None


def test_server_without_a_xonar_pool_says_how_to_make_one(xonar, monkeypatch) -> None:
    async def no_pools(client: object) -> list[object]:
        return []

    monkeypatch.setattr("xonar_prefect.cli.queue.xonar_pools", no_pools)
    ended = xonar("queue")
    assert ended.status == 0
    assert "There is no work pool of type xonar; create one with `xonar pool create" in ended.words
    assert xonar("queue", "--json").json == []


def test_running_training_of_another_host_is_shown_from_its_labels(xonar, pool) -> None:
    told = {
        labels.DEVICES: "GPU-1, GPU-2",
        labels.PARTNER: "sly-fox",
        labels.PREDICTED_SLOWDOWN: "1.300",
    }
    pool.submit("far-away", told, state=running_state())
    (shown,) = xonar("queue", "--pool", pool.name, "--json").json
    (far,) = shown["running"]
    assert far["devices"] == ["GPU-1", "GPU-2"]
    assert (far["partners"], far["predicted_slowdown"]) == (["sly-fox"], 1.3)
    assert far["progress"] is None


def test_unknown_pool_says_how_to_create_it(xonar) -> None:
    ended = xonar("queue", "--pool", "nowhere")
    assert ended.status == 1
    assert "There is no work pool 'nowhere'; create it with" in ended.errors
