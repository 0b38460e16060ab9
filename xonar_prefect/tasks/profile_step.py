"""The profiling task run that stands beside a training."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger
from prefect.states import Completed
from prefect.utilities.visualization import get_task_viz_tracker

from xonar_prefect.artifacts import Card, missing_profile_card, profile_card
from xonar_prefect.core.models import Profile
from xonar_prefect.errors import UnknownParameterError
from xonar_prefect.profiling.marks import is_measured
from xonar_prefect.profiling.measurement import Measurement
from xonar_prefect.profiling.training import MeasuredTraining, ProcessProbe, profile_of
from xonar_prefect.profiling.window import Window
from xonar_prefect.run_directory import RunDirectory
from xonar_prefect.tasks.guarding import Guard, guard_of
from xonar_prefect.tasks.identity import TrainingIdentity, identify
from xonar_prefect.tasks.publishing import Publisher

logger = logging.getLogger(__name__)

# How long the end of a training waits for its profile to be published, at most.
_PUBLISH_SECONDS = 20.0
# The same when the run is being cancelled and will be killed soon.
_URGENT_SECONDS = 2.0
# A peak that grew by more than this since the profile was taken is published anew.
_PEAK_GROWTH_RATIO = 1.05

_probe_lock = threading.Lock()
_probes: dict[RunDirectory | None, ProcessProbe] = {}
# Keys that this process has measured for a flow run: once is enough.
_measured: set[tuple[str, str]] = set()


def _probe() -> ProcessProbe:
    directory = RunDirectory.from_environment()
    with _probe_lock:
        if directory not in _probes:
            _probes[directory] = ProcessProbe(directory)
        return _probes[directory]


class ProfileStep:
    """Measures a training and publishes its profile, in a task run and a thread of its own."""

    def __init__(self, identity: TrainingIdentity, window: Window, guard: Guard | None) -> None:
        self._identity = identity
        self._guard = guard
        self._probe = _probe()
        placement = identity.placement
        self._is_known = (
            identity.known_profile is not None or (identity.flow_run_id, identity.key) in _measured
        )
        self._training = MeasuredTraining(
            self._probe,
            window,
            on_gpu=identity.on_gpu,
            wanted=not self._is_known,
            memory_limit_mib=placement.memory_limit_mib if placement else None,
        )
        self._publisher = Publisher(identity)
        self._published: tuple[Profile, Measurement] | None = None
        # A copy of the context, so that the task run belongs to the flow run; a thread of its
        # own, so that neither the training, nor an event loop, nor a full task runner waits.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._run_task,), name="xonar-profile", daemon=True
        )
        self._thread.start()

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Return the context in which the training's function runs."""
        with ExitStack() as stack:
            if self._guard is not None:
                stack.enter_context(self._guard.watching(self._identity.key))
            stack.enter_context(self._training.attempt())
            yield

    def close(self, urgent: bool = False) -> None:  # noqa: FBT001, FBT002
        """No attempt will follow; wait, but not for ever, until the profile is published."""
        self._training.close()
        self._thread.join(_URGENT_SECONDS if urgent else _PUBLISH_SECONDS)
        if self._thread.is_alive():
            logger.warning("The profile of %s was not published in time.", self._identity.name)
        elif not urgent:
            self._publish_grown_peak()

    def _run_task(self) -> None:
        label = f"profile {self._identity.name}"
        try:
            task: Task[[], State[Any]] = Task(
                fn=self._profile,
                name=label,
                task_run_name=label.replace("{", "{{").replace("}", "}}"),
                description="Measures the first steps of the training that runs beside it.",
                cache_policy=NO_CACHE,
                retries=0,
                persist_result=False,
            )
            task(return_state=True)
        except Exception:
            # For example because Prefect's API does not answer.
            logger.warning("Profiling %s failed.", self._identity.name, exc_info=True)
        finally:
            self._probe.reporter.profiled(published=False)
        self._publish_changes()

    def _profile(self) -> State[Any]:
        if (context := TaskRunContext.get()) is not None:
            self._publisher.task_run_id = context.task_run.id
        if self._is_known:
            return Completed(name="Cached", message=f"Profile {self._identity.key} is known.")
        try:
            return self._measured()
        except Exception as error:
            # A profile is not worth a training; without one it counts as unprofiled.
            logger.debug("Profiling failed.", exc_info=True)
            return self._without_profile(f"Profiling failed: {error!r}.")

    def _measured(self) -> State[Any]:
        measurement = self._training.measure()
        if not self._training.took_turn:
            return Completed(
                name="Skipped",
                message=(
                    "Another training of this process was being measured."
                    if self._training.gave_way
                    else "The training did not run in this process: it never started, its result "
                    "was cached, or its task runner uses other processes."
                ),
            )
        profile = self._profile_of(measurement)
        if profile is None or measurement.estimate is None:
            return self._without_profile(
                "This training took no step after the warm-up: train longer, or, if it did, "
                "use Keras fit or a PyTorch optimizer, or mark its steps with "
                "xonar_prefect.steps(...)."
            )
        card = self._card_of(profile, measurement)
        self._publisher.publish_profile(profile, measurement)
        self._published = profile, measurement
        _measured.add((self._identity.flow_run_id, self._identity.key))
        self._probe.reporter.profiled(published=True)
        self._publisher.publish_card(card)
        get_run_logger().info("Profile of %s: %s", self._identity.name, card.description)
        return Completed(message=card.description)

    def _publish_changes(self) -> None:
        """Publish again what the training becomes after its profile step has ended."""
        if self._published is None:
            return
        try:
            for measurement in self._training.changes():
                if (profile := self._profile_of(measurement)) is not None:
                    self._publisher.publish_profile(profile, measurement)
                    self._published = profile, measurement
                    self._probe.reporter.profiled(published=True)
                    self._publisher.publish_card(self._card_of(profile, measurement))
        except Exception:
            logger.warning("A change of %s was not published.", self._identity.name, exc_info=True)

    def _without_profile(self, problem: str) -> State[Any]:
        get_run_logger().warning(problem)
        self._publisher.publish_card(missing_profile_card(self._identity.name, problem))
        return Completed(name="Unprofiled", message=problem)

    def _card_of(self, profile: Profile, measurement: Measurement) -> Card:
        estimate = measurement.estimate
        return profile_card(
            self._identity.name,
            profile,
            measured_step_seconds=estimate.step_seconds if estimate else None,
        )

    def _profile_of(self, measurement: Measurement) -> Profile | None:
        placement = self._identity.placement
        return profile_of(
            measurement,
            key=self._identity.key,
            device_model=placement.device_model if placement else "none",
            device=",".join(placement.devices) if placement and placement.devices else None,
            joint=self._identity.joint,
            code_version=self._identity.code_version,
            peak_memory=self._training.peak_memory(),
            earlier=self._identity.earlier_profile,
        )

    def _publish_grown_peak(self) -> None:
        """Publish the profile again if more memory was needed after the measured steps.

        Validation and checkpoints come later than the first steps, and a peak that is too low is
        what ends in an out-of-memory error.
        """
        if self._published is None:
            return
        profile, measurement = self._published
        peak, source = self._training.peak_memory()
        if peak is None or peak <= (profile.peak_memory_mib or 0) * _PEAK_GROWTH_RATIO:
            return
        try:
            grown = replace(profile, peak_memory_mib=peak, memory_source=source)
            self._publisher.publish_profile(grown, measurement)
            self._probe.reporter.profiled(published=True)
        except Exception:
            logger.warning("The grown memory peak could not be published.", exc_info=True)


def begin_profile_step(
    name: str, profile_by: tuple[str, ...] | None, window: Window
) -> ProfileStep | None:
    """Begin the profile step of the training that is about to start in this context.

    Returns None where there is nothing to measure: outside a flow run, while a flow is drawn, and
    inside a training that is measured already.

    Raises:
        UnknownParameterError: `profile_by` names a parameter that the flow run does not have.
    """
    try:
        if get_task_viz_tracker() is not None or is_measured():
            return None
        identity = identify(name, profile_by)
        if identity is None:
            return None
        return ProfileStep(identity, window, guard_of(RunDirectory.from_environment()))
    except UnknownParameterError:
        raise  # the user's mistake: better said now than found in a slow queue
    except Exception:
        logger.warning("%s is not profiled.", name, exc_info=True)
        return None
