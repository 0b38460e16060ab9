"""The default policy: whoever lowers the expected sum of completion times most comes next."""

from xonar_prefect.core.policies.adaptive.policy import Adaptive

__all__ = ["Adaptive"]
