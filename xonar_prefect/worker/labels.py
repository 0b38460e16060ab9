"""Labels that the worker writes on a flow run. Stored by Prefect: never renamed."""

from __future__ import annotations

REASON_CODE = "xonar.reason-code"
REASON = "xonar.reason"
DEVICES = "xonar.devices"
PARTNER = "xonar.partner"
PREDICTED_SLOWDOWN = "xonar.predicted-slowdown"
