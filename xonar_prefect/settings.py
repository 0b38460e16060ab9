"""Every knob of a worker, typed and described; the only place that reads the environment.

Each can be set by an environment variable with the prefix `XONAR_`, by the same name in a file
`.env`, or by a worker's command line, which wins.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from dotenv import dotenv_values
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from xonar_prefect.core.models import Limits
from xonar_prefect.core.quarantine import FailFastRule
from xonar_prefect.errors import MisspeltSettingError, WrongSettingError
from xonar_prefect.fields import expected
from xonar_prefect.profiling.injection import REPORTS_VARIABLE
from xonar_prefect.run_directory import RUN_DIRECTORY_VARIABLE

_PREFIX = "XONAR_"
_FILE = ".env"
# Not settings, but ours all the same: no misspelt settings.
_OTHER_VARIABLES = frozenset({RUN_DIRECTORY_VARIABLE, REPORTS_VARIABLE, "XONAR_DEMO_HOME"})
_TEST_PREFIXES = ("XONAR_TEST_", "XONAR_CHAOS_", "XONAR_RACE_")


class XonarSettings(BaseSettings):
    """Settings of a worker and of the commands beside it."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_file=_FILE,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
    )

    home: Annotated[
        Path,
        Field(
            validate_default=True, description="Directory of the store, locks and run directories."
        ),
    ] = Path("~/.xonar")
    store_url: Annotated[
        str | None,
        Field(
            description="SQLAlchemy address of the store; by default SQLite in the home directory."
        ),
    ] = None
    lock_directory: Annotated[
        Path | None,
        Field(
            description="Directory of the locks that keep two workers off one device; by default "
            "one for all workers on this host."
        ),
    ] = None
    policy: Annotated[
        str, Field(description="Policy that orders trainings: see `xonar worker start --help`.")
    ] = "adaptive"
    devices: Annotated[
        Literal["auto", "nvidia", "cpu"],
        Field(description="Which devices to use; auto takes GPUs and falls back to CPU cores."),
    ] = "auto"
    cpu_devices: Annotated[
        str | None,
        Field(
            description="Processor cores that stand in as devices, as in `taskset` (`0,2-3`); "
            "by default all but one, or all where there are two or fewer."
        ),
    ] = None
    max_trainings_per_gpu: Annotated[
        int, Field(ge=1, le=16, description="Trainings that may share a device.")
    ] = 2
    headroom_mib: Annotated[
        int, Field(ge=0, description="Memory of each device that is never given away, at least.")
    ] = 256
    headroom_ratio: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="The same as a share of the device; the larger of the two counts.",
        ),
    ] = 0.01
    memory_margin_ratio: Annotated[
        float, Field(ge=0, le=1, description="Margin over a measured memory peak, as a share.")
    ] = 0.10
    memory_margin_mib: Annotated[
        int, Field(ge=0, description="The least margin over a measured memory peak.")
    ] = 64
    max_wait_seconds: Annotated[
        float,
        Field(
            ge=0,
            description="Age from which no later training may take the place of a held one; a day "
            "by default. The shorter, the more the queue is first come, first served.",
        ),
    ] = 86400.0
    max_runs_without_device: Annotated[
        int, Field(ge=1, description="Runs with `gpus: 0` that may run at once.")
    ] = 4
    max_starting: Annotated[
        int,
        Field(
            ge=1,
            description="Trainings that may start at once, so that a long queue does not start in "
            "one moment; the next ones follow as soon as these have begun.",
        ),
    ] = 8
    host_headroom_mib: Annotated[
        int, Field(ge=0, description="Main memory of the host that is never given away.")
    ] = 512
    least_free_disk_mib: Annotated[
        int,
        Field(
            ge=0,
            description="With less free on the home's file system nothing is released; what runs "
            "goes on.",
        ),
    ] = 1024
    least_free_inodes: Annotated[
        int, Field(ge=0, description="The same for files that the file system can still make.")
    ] = 1000
    keep_runs_days: Annotated[
        float,
        Field(
            ge=0,
            description="How long run directories, with the outputs in them, are kept after the "
            "run's end; 0 keeps them for ever.",
        ),
    ] = 14.0
    keep_artifacts_days: Annotated[
        float,
        Field(
            ge=0,
            description="How long the artifacts of ended runs are kept in Prefect, profiles and "
            "their cards apart, which stay; 0 keeps them for ever.",
        ),
    ] = 90.0
    keep_ledger_days: Annotated[
        float,
        Field(
            ge=0,
            description="How long the store remembers releases that have ended; 0 for ever.",
        ),
    ] = 90.0
    keep_observations_days: Annotated[
        float,
        Field(
            ge=0,
            description="How long measured co-runs are kept, in the store and as artifacts; 0 for "
            "ever.",
        ),
    ] = 365.0
    visible_held: Annotated[
        int, Field(ge=0, description="Held runs that are marked AwaitingGPU at most.")
    ] = 100
    mark_after_seconds: Annotated[
        float,
        Field(ge=0, allow_inf_nan=False, description="How long a run is held before it is marked."),
    ] = 5.0
    mark_again_seconds: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="How long another kind of reason must stand before a run is marked again.",
        ),
    ] = 30.0
    poll_seconds: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False, description="How often the queue is looked at."),
    ] = 10.0
    whole_queue_seconds: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="How often a queue of more than 200 runs is read as a whole; in between "
            "only what is new.",
        ),
    ] = 600.0
    watch_seconds: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False, description="How often running trainings are looked at."),
    ] = 0.5
    fail_fast_failures: Annotated[
        int,
        Field(
            ge=0,
            description="Different trainings that fail one after the other on a device, shortly "
            "after their launch, before nothing more is released to it for a while; 0 for never.",
        ),
    ] = 3
    fail_fast_seconds: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="How soon after its launch a training must fail to speak against its "
            "device.",
        ),
    ] = 60.0
    fail_fast_pause_seconds: Annotated[
        float,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="How long nothing is released to such a device; twice as long each time "
            "it does so again, up to an hour.",
        ),
    ] = 300.0
    stop_grace_seconds: Annotated[
        float,
        Field(
            gt=0,
            description="Time a training has to end by itself before it is killed. A cancelled "
            "one is sent SIGTERM after two thirds of it.",
        ),
    ] = 7.5
    linger_seconds: Annotated[
        float,
        Field(
            ge=0,
            description="Time that processes may live on after their run has got its final state.",
        ),
    ] = 60.0
    max_requeues: Annotated[
        int,
        Field(
            ge=0,
            description="How often a training is started again that was killed from outside: the "
            "host was restarted or ran out of memory. Once, as in Slurm: whoever leaves for the "
            "night wants it done in the morning, and what kills it every time must not go on for "
            "ever. A deployment may say otherwise.",
        ),
    ] = 1
    requeue_pause_seconds: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="How long such a training waits before it is released again; twice as "
            "long after each further time.",
        ),
    ] = 10.0
    stop_trainings: Annotated[
        bool,
        Field(
            description="When the worker is stopped, end its trainings and put them back into "
            "the queue; otherwise they run on and are adopted by the next worker of this name."
        ),
    ] = False

    @field_validator("home", "lock_directory")
    @classmethod
    def _expand_home(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser()

    @property
    def store_path(self) -> Path:
        """The file of the store where no address of one is given."""
        return self.home / "store.db"

    @property
    def effective_store_url(self) -> str:
        """The store's address, default filled in."""
        return self.store_url or f"sqlite:///{self.store_path}"

    def fail_fast_rule(self) -> FailFastRule:
        """Return when a device counts as failing fast."""
        pause = self.fail_fast_pause_seconds
        return FailFastRule(
            failures=self.fail_fast_failures,
            within_seconds=self.fail_fast_seconds,
            window_seconds=max(600.0, 2 * pause),
            pause_seconds=pause,
            longest_pause_seconds=max(3600.0, pause),
        )

    def limits(self) -> Limits:
        """Return the rules of a decision that come from settings; the worker adds Prefect's."""
        return Limits(
            max_trainings_per_gpu=self.max_trainings_per_gpu,
            headroom_mib=self.headroom_mib,
            headroom_ratio=self.headroom_ratio,
            margin_ratio=self.memory_margin_ratio,
            margin_mib=self.memory_margin_mib,
            max_wait_seconds=self.max_wait_seconds,
        )


SETTING_VARIABLES = frozenset(f"{_PREFIX}{name.upper()}" for name in XonarSettings.model_fields)


def load_settings(**overrides: object) -> XonarSettings:
    """Read the settings; overrides that are None are left to the environment and defaults.

    Raises:
        WrongSettingError: A value is wrong; the sentence names the variable and what it must be.
        MisspeltSettingError: A variable looks like a setting and is none.
    """
    _check_names([*os.environ, *dotenv_values(_FILE)])
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return XonarSettings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        field = XonarSettings.model_fields[name.lower()]
        raise WrongSettingError(
            f"{_PREFIX}{name.upper()}", first["input"], expected(field)
        ) from error


def _check_names(names: Iterable[str]) -> None:
    """Refuse what may be a misspelt setting: passed over in silence, it would be missed at 3 a.m.

    A variable that is like no setting may be somebody else's.
    """
    for name in sorted({name.upper() for name in names}):
        is_other = name in _OTHER_VARIABLES or name.startswith(_TEST_PREFIXES)
        if not name.startswith(_PREFIX) or name in SETTING_VARIABLES or is_other:
            continue
        settings = {setting.removeprefix(_PREFIX) for setting in SETTING_VARIABLES}
        near = difflib.get_close_matches(name.removeprefix(_PREFIX), settings, n=1)
        if near:
            raise MisspeltSettingError(name, f"{_PREFIX}{near[0]}")
