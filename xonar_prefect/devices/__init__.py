"""Knows the accelerators: GPUs through NVML, processor cores as stand-ins."""

from __future__ import annotations

from xonar_prefect.devices.base import Accelerators, DeviceReading
from xonar_prefect.devices.discovery import discover

__all__ = ["Accelerators", "DeviceReading", "discover"]
