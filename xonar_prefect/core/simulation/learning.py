"""What becomes known while a queue runs: profiles, observed co-runs, durations, clashes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from xonar_prefect.core.interference import InterferenceModel
from xonar_prefect.core.models import Observation, Profile
from xonar_prefect.core.simulation.running import Running, Window
from xonar_prefect.core.simulation.world import MANY_DEVICES, Learnt, Submission, World

LEAST_STEPS = 10.0
_CERTAIN_STEPS = 1000.0
"""A combination seen for so many steps is not told again: the world's law does not change."""
_MOST_OBSERVATIONS = 5000
"""What a worker's store tells at most, the newest."""
_NEWS_SHARE = 0.25
"""On many devices, the model is built anew when more than this share of what it rests on has
changed: co-runs end there so often that building it for each would take most of the time."""


class Knowledge:
    """What the policy may know, as opposed to what is true.

    Attributes:
        clashes: Pairs known to run out of memory together.
    """

    def __init__(self, world: World, before: Learnt) -> None:
        self._world = world
        self._observations = {
            (each.device_model, each.profile_key, each.partner_keys): each
            for each in before.observations
        }
        self._expected: list[tuple[float, int, Running, Window]] = []
        self._count = 0
        self._profiled = set(before.profiled)
        self._profiles_by_kind: dict[str, Mapping[str, Profile]] = {}
        self._durations = dict(before.durations)
        self._mean_durations = {at: sum_s / count for at, (sum_s, count) in self._durations.items()}
        self.clashes = world.clashes | before.clashes
        self._told: tuple[Observation, ...] | None = None
        self._known_profiles: tuple[Profile, ...] | None = None
        self._interference: InterferenceModel | None = None
        self._news = 0
        self._news_share = _NEWS_SHARE if len(world.devices) > MANY_DEVICES else 0.0

    def learnt(self) -> Learnt:
        """Return what stays for the next queue."""
        return Learnt(
            observations=tuple(self._observations.values()),
            profiled=frozenset(self._profiled),
            durations=dict(self._durations),
            clashes=self.clashes,
        )

    # Profiles

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """All known profiles."""
        if self._known_profiles is None:
            self._known_profiles = tuple(
                profile
                for kind in self._world.profiles
                for profile in self.profiles_of(kind).values()
            )
        return self._known_profiles

    def profiles_of(self, kind: str) -> Mapping[str, Profile]:
        """Return the known profiles of a kind by device model."""
        if self._world.profiled:
            return self._world.profiles.get(kind, {})
        known = self._profiles_by_kind.get(kind)
        if known is None:
            known = {
                model: profile
                for model, profile in self._world.profiles.get(kind, {}).items()
                if (kind, model) in self._profiled
            }
            self._profiles_by_kind[kind] = known
        return known

    def is_profiled(self, kind: str, device_model: str) -> bool:
        """Tell whether there is nothing to profile, or it was done."""
        return (
            self._world.profiled
            or (kind, device_model) in self._profiled
            or device_model not in self._world.profiles.get(kind, {})
        )

    def profile(self, kind: str, device_model: str) -> None:
        """Take in a profile that has settled."""
        self._profiled.add((kind, device_model))
        self._profiles_by_kind.pop(kind, None)
        self._known_profiles = None
        self._interference = None

    # Durations

    @property
    def mean_durations(self) -> Mapping[tuple[str, str], float]:
        """Mean time alone of finished trainings, by kind and device model."""
        return dict(self._mean_durations)

    def finish(self, submission: Submission, device_model: str) -> None:
        """Take in how long a training would have taken alone."""
        at = (submission.kind, device_model)
        total, count = self._durations.get(at, (0.0, 0))
        seconds = submission.solo_seconds * self._world.relative_seconds(*at)
        self._durations[at] = (total + seconds, count + 1)
        self._mean_durations[at] = (total + seconds) / (count + 1)

    def foreseen_seconds(self, submission: Submission) -> float | None:
        """Return how long a held training will need on the fastest model it has a profile of."""
        if not self._world.durations_known:
            return None
        relative = [
            self._world.relative_seconds(submission.kind, model)
            for model in self.profiles_of(submission.kind)
        ]
        return submission.solo_seconds * min(relative, default=1.0)

    # Memory

    def clash(self, kind: str, partners: Iterable[str], device_model: str) -> None:
        """Take in that a training ran out of memory beside these."""
        self.clashes |= {(device_model, min(kind, other), max(kind, other)) for other in partners}

    # Co-runs

    @property
    def interference(self) -> InterferenceModel:
        """The model built from what was observed; on many devices, but for the very latest."""
        if self._interference is None or self._news > self._news_share * len(self._observations):
            self._interference = InterferenceModel.from_observations(
                self._observations.values(),
                self.profiles,
                {kind: {"training": kind} for _, kind, _ in self._observations},
            )
            self._news = 0
        return self._interference

    def observations(self, now_s: float) -> tuple[Observation, ...]:
        """Return the co-runs measured so far; the same object while nothing is new."""
        while self._expected and self._expected[0][0] <= now_s:
            known_at_s, _, running, window = heapq.heappop(self._expected)
            if running.window is window:
                self._observe(running, window, LEAST_STEPS, known_at_s)
        if self._told is None:
            self._told = tuple(self._observations.values())
        return self._told

    def open_window(self, running: Running, window: Window) -> None:
        """Expect an observation as soon as a co-run has made enough steps."""
        known_at_s = window.opened_at_s + LEAST_STEPS * running.step_seconds * window.slowdown
        self._count += 1
        heapq.heappush(self._expected, (known_at_s, self._count, running, window))

    def close_window(self, running: Running, window: Window, now_s: float) -> None:
        """Take in what a co-run was like, now that it has ended."""
        steps = (now_s - window.opened_at_s) / (running.step_seconds * window.slowdown)
        if steps >= LEAST_STEPS:
            self._observe(running, window, steps, now_s)

    def _observe(self, running: Running, window: Window, steps: float, now_s: float) -> None:
        at = (running.device_model, running.submission.kind, window.partner_kinds)
        known = self._observations.get(at)
        steps = min(steps, _CERTAIN_STEPS)
        if known is not None and steps < 4 * known.steps:
            return
        self._observations.pop(at, None)  # the newest stands last
        if len(self._observations) >= _MOST_OBSERVATIONS:
            del self._observations[next(iter(self._observations))]
        self._observations[at] = Observation(
            device_model=running.device_model,
            profile_key=running.submission.kind,
            partner_keys=window.partner_kinds,
            slowdown=window.slowdown,
            steps=int(steps),
            observed_at_s=now_s,
        )
        self._told = None
        self._news += 1
