"""What a flow run's tags and parameters say about its training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

OWNER_TAG = "owner:"
_SIMPLE = (str, int, float)


def owner_in(tags: Iterable[str]) -> str | None:
    """Return the owner that a tag names; of several, the first by name.

    >>> owner_in(["nightly", "owner:ada"])
    'ada'
    """
    owners = sorted(tag.removeprefix(OWNER_TAG) for tag in tags if tag.startswith(OWNER_TAG))
    return next((owner for owner in owners if owner), None)


def as_text(flow_name: str, parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return what kinds are compared by: the flow, and the parameters with a simple value.

    >>> as_text("train", {"model": "bert", "batch_size": 8, "data": ["a", "b"]})
    {'flow': 'train', 'model': 'bert', 'batch_size': '8'}
    """
    simple = {name: str(value) for name, value in parameters.items() if isinstance(value, _SIMPLE)}
    return {"flow": flow_name, **simple}
