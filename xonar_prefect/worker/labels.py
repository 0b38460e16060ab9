"""Labels that the worker writes on a flow run. Stored by Prefect: never renamed."""

from __future__ import annotations

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
