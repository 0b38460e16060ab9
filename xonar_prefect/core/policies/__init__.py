"""The policies, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from xonar_prefect.core.policies.adaptive import Adaptive
from xonar_prefect.core.policies.base import Policy
from xonar_prefect.core.policies.complementary import Complementary
from xonar_prefect.core.policies.horus import Horus
from xonar_prefect.core.policies.lucid import Lucid
from xonar_prefect.core.policies.parallel import Parallel
from xonar_prefect.core.policies.serial import Serial
from xonar_prefect.errors import UnknownPolicyError

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        policy.name: policy
        for policy in (Adaptive(), Complementary(), Horus(), Lucid(), Parallel(), Serial())
    }
)

__all__ = ["POLICIES", "Policy", "policy_named"]


def policy_named(name: str) -> Policy:
    """Return the policy of this name.

    Raises:
        UnknownPolicyError: There is none; the message lists those there are.
    """
    try:
        return POLICIES[name]
    except KeyError:
        raise UnknownPolicyError(name, POLICIES) from None
