"""Whether a training is being launched: work that can wait steps aside meanwhile."""

from __future__ import annotations

import anyio

# A launch that hangs must not keep everything else from being done.
_MOST_SECONDS = 5.0


class LaunchesInFlight:
    """The releases between decision and started process."""

    def __init__(self) -> None:
        self._run_ids: set[str] = set()
        self._none = anyio.Event()

    def __len__(self) -> int:
        return len(self._run_ids)

    def begin(self, run_id: str) -> None:
        """Note that a training was released."""
        if not self._run_ids:
            self._none = anyio.Event()
        self._run_ids.add(run_id)

    def end(self, run_id: str) -> None:
        """Note that it was started, or that it will not be."""
        self._run_ids.discard(run_id)
        if not self._run_ids:
            self._none.set()

    async def step_aside(self) -> None:
        """Wait until nothing is being launched, or for five seconds."""
        if self._run_ids:
            with anyio.move_on_after(_MOST_SECONDS):
                await self._none.wait()
