"""A real run of the demonstration, replayed: how close is the simulated average JCT?

What the trainings are like - time alone, start-up - is taken from the serial arms, where nobody had
a partner; how pairs slow each other down, from the windows in which they stepped together. Then
every arm is simulated and compared with what was measured. To record and replay one:

    xonar demo --compare --repeat 3 --home DIRECTORY --json DIRECTORY/result.json
    python -m tests.benchmarks.demo_replay --home DIRECTORY --record FILE

and to replay a record again, `python -m tests.benchmarks.demo_replay --replay FILE`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.benchmarks.experiments import new_table, show
from xonar_prefect.core.codec import profile_from_dict, profile_to_dict
from xonar_prefect.core.ledger import CoRun, LedgerEntry
from xonar_prefect.core.models import Profile
from xonar_prefect.core.policies import policy_named
from xonar_prefect.core.simulation import Submission, simulate
from xonar_prefect.core.simulation.assembly import assemble, gpus, with_requests
from xonar_prefect.core.simulation.history import RecordedRun, slowdowns_of, submissions_of
from xonar_prefect.run_directory import RunDirectory
from xonar_prefect.store import Store

LEAST_STEPS = 10


def record(home: Path, ours: str) -> dict[str, Any]:
    """Return what a kept demonstration has left of every arm.

    Args:
        home: Its home directory.
        ours: Name of the policy of the arm "ours".
    """
    result = json.loads((home / "result.json").read_text(encoding="utf-8"))
    with Store.open(f"sqlite:///{home / 'xonar' / 'store.db'}") as store:
        entries = store.entries(limit=10_000)
        profiles = [profile_to_dict(each.profile) for each in store.profiles()]
    arms = []
    for number, repeat in enumerate(result["repeats"], start=1):
        for arm, measured in repeat.items():
            there = [entry for entry in entries if entry.worker == f"demo-{arm}-{number}"]
            held_s = {each["name"]: each["held_s"] for each in measured["trainings"]}
            arms.append(
                {
                    "arm": f"{arm}-{number}",
                    "policy": ours if arm == "ours" else arm,
                    "average_jct_s": measured["average_jct_s"],
                    "makespan_s": measured["makespan_s"],
                    "runs": [
                        asdict(_recorded(entry, held_s[entry.name])) for entry in reversed(there)
                    ],
                }
            )
    devices = {device for entry in entries for device in entry.devices}
    return {"devices": len(devices), "profiles": profiles, "arms": arms}


def _recorded(entry: LedgerEntry, held_s: float) -> RecordedRun:
    status = RunDirectory(Path(entry.run_directory)).read_status()
    return RecordedRun(
        name=entry.name,
        kind=entry.profile_key or entry.name,
        device_model=entry.device_model,
        gpus=len(entry.devices),
        submitted_at_s=entry.reserved_at_s - held_s,
        released_at_s=entry.reserved_at_s,
        ended_at_s=entry.ended_at_s or entry.reserved_at_s,
        steps=status.steps_done if status else None,
        stepping_seconds=status.stepping_seconds if status else None,
        co_runs=tuple(
            CoRun(
                partners=("",) * len(each.partners),
                partner_keys=each.partner_keys,
                steps=each.steps,
                seconds=each.seconds,
            )
            for each in entry.co_runs
        ),
    )


def runs_of(arm: Mapping[str, Any]) -> list[RecordedRun]:
    """Return the runs of a recorded arm."""
    return [
        RecordedRun(
            **{
                **values,
                "co_runs": tuple(
                    CoRun(
                        **{
                            **each,
                            "partners": tuple(each["partners"]),
                            "partner_keys": tuple(each["partner_keys"]),
                        }
                    )
                    for each in values["co_runs"]
                ),
            }
        )
        for values in arm["runs"]
    ]


def replay(recorded: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return for each arm its name, and its average JCT as measured and as simulated."""
    profiles: dict[str, dict[str, Profile]] = {}
    for values in recorded["profiles"]:
        profile = profile_from_dict(values)
        profiles.setdefault(profile.key, {})[profile.device_model] = profile
    everything = [run for arm in recorded["arms"] for run in runs_of(arm)]
    (model,) = {run.device_model for run in everything}
    world = assemble(
        profiles,
        gpus(recorded["devices"], model),
        throughputs=slowdowns_of(everything, profiles, LEAST_STEPS),
        startup_active_fraction=1.0,  # a core imports and compiles, it does not wait
    )
    alone = _alone([arm for arm in recorded["arms"] if arm["policy"] == "serial"], profiles)
    found = []
    for arm in recorded["arms"]:
        runs = runs_of(arm)
        submissions, _ = submissions_of(runs, profiles)
        queue = [
            replace(alone[each.name], submitted_at_s=each.submitted_at_s, priority=each.priority)
            for each in submissions
        ]
        simulated = simulate(world, with_requests(world, queue), policy_named(arm["policy"]))
        average = simulated.service.average_jct_s or 0.0
        found.append((arm["arm"], arm["average_jct_s"], average))
    return found


def _alone(
    serial: Sequence[Mapping[str, Any]], profiles: Mapping[str, Mapping[str, Profile]]
) -> dict[str, Submission]:
    """Return what each training is like without a partner, as the mean over serial arms."""
    by_name: dict[str, list[Submission]] = {}
    for arm in serial:
        for each in submissions_of(runs_of(arm), profiles)[0]:
            by_name.setdefault(each.name, []).append(each)
    return {
        name: replace(
            seen[0],
            solo_seconds=fmean(each.solo_seconds for each in seen),
            startup_seconds=fmean(each.startup_seconds or 0.0 for each in seen),
        )
        for name, seen in by_name.items()
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="A demonstration, replayed")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--home", type=Path, help="home of a demonstration, with result.json")
    source.add_argument("--replay", type=Path, help="a record of one")
    parser.add_argument("--ours", default="adaptive", help="policy of the arm 'ours'")
    parser.add_argument("--record", type=Path, help="write the record to this file")
    options = parser.parse_args()
    if options.replay:
        recorded = json.loads(options.replay.read_text(encoding="utf-8"))
    else:
        recorded = record(options.home, options.ours)
    if options.record:
        options.record.write_text(json.dumps(recorded), encoding="utf-8")
    table = new_table("Average JCT", "arm", "measured", "simulated", "difference")
    for arm, measured, simulated in replay(recorded):
        table.add_row(
            arm, f"{measured:.1f} s", f"{simulated:.1f} s", f"{simulated / measured - 1:+.1%}"
        )
    show(table)


if __name__ == "__main__":
    main()
