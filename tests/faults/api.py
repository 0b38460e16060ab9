"""The Prefect API as the judge uses it: straight to the server, with no retries behind our back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

_PAGE = 200  # the server's cap
_TIMEOUT_SECONDS = 5.0
# Where nobody has taken the server away, it is at most slow.
_PATIENT_SECONDS = 60.0
UNFINISHED = ("SCHEDULED", "PENDING", "RUNNING", "CANCELLING", "PAUSED")


@dataclass(frozen=True, slots=True)
class State:
    """A state of a run."""

    type: str
    name: str
    message: str

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> State:
        return cls(values["type"], values["name"], values["message"] or "")

    @property
    def is_final(self) -> bool:
        return self.type not in UNFINISHED


class Api:
    """Few calls of a server; each raises `httpx.HTTPError` while the server is away."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=_TIMEOUT_SECONDS, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def is_healthy(self) -> bool:
        """Tell whether the server answers."""
        try:
            return self._client.get("/health").is_success
        except httpx.HTTPError:
            return False

    def create_pool(self, name: str, template: Mapping[str, Any]) -> None:
        self._post(
            "/work_pools/",
            {"name": name, "type": "xonar", "base_job_template": dict(template)},
            _PATIENT_SECONDS,
        )

    def create_deployment(self, pool: str, name: str) -> str:
        """Return the id of a deployment whose runs start nothing but their command."""
        flow = self._post("/flows/", {"name": name}, _PATIENT_SECONDS)
        body = {"name": name, "flow_id": flow["id"], "work_pool_name": pool}
        body["entrypoint"] = "train.py:train"
        return str(self._post("/deployments/", body, _PATIENT_SECONDS)["id"])

    def submit(self, deployment: str, name: str, **job_variables: Any) -> str:
        """Return the id of a new run; the same one when an earlier answer was lost."""
        body = {"name": name, "idempotency_key": name, "job_variables": job_variables}
        return str(self._post(f"/deployments/{deployment}/create_flow_run", body)["id"])

    def unfinished(self) -> frozenset[str]:
        """Return the ids of all runs that are in no final state."""
        states = {"state": {"type": {"any_": list(UNFINISHED)}}}
        return frozenset(run["id"] for run in self._runs(states))

    def history(self, run_id: str) -> list[State]:
        """Return all states that a run has been in."""
        response = self._client.get(
            "/flow_run_states/", params={"flow_run_id": run_id}, timeout=_PATIENT_SECONDS
        )
        response.raise_for_status()
        return [
            State.of(values)
            for values in sorted(response.json(), key=lambda state: state["timestamp"])
        ]

    def cancel(self, run_id: str) -> State | None:
        """Cancel a run as the UI does; return the state it has got, None when it was refused."""
        answer = self._post(f"/flow_runs/{run_id}/set_state", {"state": {"type": "CANCELLING"}})
        return State.of(answer["state"]) if answer["state"] else None

    def _runs(self, flow_runs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        offset = 0
        while True:
            body = {"limit": _PAGE, "offset": offset, "sort": "ID_DESC", "flow_runs": flow_runs}
            page = self._post("/flow_runs/filter", body)
            yield from page
            if len(page) < _PAGE:
                return
            offset += _PAGE

    def _post(self, path: str, body: Mapping[str, Any], seconds: float = _TIMEOUT_SECONDS) -> Any:
        response = self._client.post(path, json=body, timeout=seconds)
        response.raise_for_status()
        return response.json()
