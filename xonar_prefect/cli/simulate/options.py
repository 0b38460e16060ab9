"""What `xonar simulate` was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xonar_prefect.errors import WrongUsageError

GPU_FORM = "COUNT[:MODEL[:MEMORY_MIB]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command, as they were given; None where one was not."""

    profiles: Path | None
    colocation: Path | None
    trace: Path | None
    from_pool: str | None
    gpus: tuple[str, ...]
    gpus_per_host: int | None
    trainings_per_gpu: int | None
    queue_size: int | None
    repeat: int | None
    draw_from: str | None
    seed: int
    durations: Literal["equal", "lognormal"]
    policies: tuple[str, ...]
    startup: float | None
    profiled: Literal["none", "all"]
    remaining: Literal["known", "reported"]
    remember: bool
    max_wait: float | None
    json: bool
    plot: Path | None
    explain: str | None

    def check(self) -> None:
        """Refuse options that exclude each other.

        Raises:
            WrongUsageError: They do.
        """
        if self.from_pool is None and self.profiles is None:
            raise WrongUsageError(
                "Nothing says what trainings are like; name a file with --profiles, or replay a "
                "pool's own history with --from-pool NAME."
            )
        excluded = {
            "--from-pool": ("--profiles", "--colocation", "--trace", "--queue-size", "--repeat"),
            "--trace": ("--queue-size", "--repeat"),
        }
        given = {
            "--from-pool": self.from_pool,
            "--profiles": self.profiles,
            "--colocation": self.colocation,
            "--trace": self.trace,
            "--queue-size": self.queue_size,
            "--repeat": self.repeat,
        }
        for option, others in excluded.items():
            for other in others:
                if given[option] is not None and given[other] is not None:
                    raise WrongUsageError(
                        f"{option} and {other} exclude each other; leave one of them out."
                    )
        if self.plot is not None and self.plot.suffix.lower() != ".svg":
            raise WrongUsageError(
                f"--plot writes SVG, but the file is named {self.plot}; give it the suffix .svg."
            )
        if self.plot is not None and not self.plot.absolute().parent.is_dir():
            raise WrongUsageError(
                f"--plot cannot write {self.plot}: {self.plot.absolute().parent} is no directory; "
                "make it first."
            )


@dataclass(frozen=True, slots=True)
class GpuGroup:
    """GPUs of one kind.

    Attributes:
        count: How many.
        model: Their model; None for that of the profiles.
        memory_mib: Memory of each; None when unknown.
    """

    count: int
    model: str | None = None
    memory_mib: int | None = None


def parse_gpus(text: str) -> GpuGroup:
    """Read `COUNT[:MODEL[:MEMORY_MIB]]`.

    >>> parse_gpus("4:V100:32768")
    GpuGroup(count=4, model='V100', memory_mib=32768)
    >>> parse_gpus("2")
    GpuGroup(count=2, model=None, memory_mib=None)

    Raises:
        WrongUsageError: It is not of this form.
    """
    count, *rest = text.split(":")
    memory = rest[1] if len(rest) == 2 else None
    right = (
        count.isascii()
        and count.isdigit()
        and int(count) > 0
        and len(rest) <= 2
        and all(rest)
        and (memory is None or (memory.isascii() and memory.isdigit() and int(memory) > 0))
    )
    if not right:
        raise WrongUsageError(
            f"--gpus is {text!r}; write it as {GPU_FORM}, as in --gpus 4:V100:32768."
        )
    return GpuGroup(int(count), rest[0] if rest else None, None if memory is None else int(memory))
