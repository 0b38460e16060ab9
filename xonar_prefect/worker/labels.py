"""Labels that the worker writes on a flow run. Stored by Prefect: never renamed."""

from __future__ import annotations

from collections.abc import Mapping

from xonar_prefect.core.decisions import ReasonCode

REASON_CODE = "xonar.reason-code"
REASON = "xonar.reason"
DEVICES = "xonar.devices"
PARTNER = "xonar.partner"
PREDICTED_SLOWDOWN = "xonar.predicted-slowdown"

# What a run has been through; counted here because it must survive every restart.
REQUEUES = "xonar.requeues"
OUT_OF_MEMORY = "xonar.out-of-memory"
BESIDE_OFFENDERS = "xonar.out-of-memory-by-others"
FAILED_LAUNCHES = "xonar.failed-launches"
LAST_ENDING = "xonar.last-ending"  # cause of the latest of them
FORGIVEN_STATES = "xonar.forgiven-states"  # ids of final states that were followed by a release
ALONE = "xonar.alone"
MEMORY_FLOOR_MIB = "xonar.memory-floor-mib"

_OF_HOLDS = frozenset(code.value for code in ReasonCode if code.is_of_hold)


def tell_of_hold(run_labels: Mapping[str, object]) -> bool:
    """Tell whether the reason on a run is one to be held, not that of a release or a refusal."""
    return run_labels.get(REASON_CODE) in _OF_HOLDS


def put_back(reason: str) -> dict[str, bool | int | float | str]:
    """Return what the labels of a run say that goes back into the queue after a release."""
    return {
        REASON_CODE: ReasonCode.PUT_BACK.value,
        REASON: reason,
        DEVICES: "",
        PARTNER: "",
        PREDICTED_SLOWDOWN: "",
    }
