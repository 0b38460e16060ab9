"""Remembers what the worker has learnt: profiles, observed pairs and the ledger of releases."""

from __future__ import annotations

from xonar_prefect.store.profiles import StoredProfile, Taken
from xonar_prefect.store.store import Store

__all__ = ["Store", "StoredProfile", "Taken"]
