"""What fits on the host around the devices, counted down as one decision releases trainings.

    foreign   = max(0, used - what our trainings were seen to use)
    available = total - headroom - foreign - sum over ours of max(request, used)

Main memory is reserved at full request. A training of unknown need is counted with an even share
of the host: unknown is never zero. Processor threads and shared memory are reserved where they
were declared only: too few threads make a training slow, and do not end it.
"""

from __future__ import annotations

from dataclasses import dataclass

from xonar_prefect.core.decisions import ReasonCode
from xonar_prefect.core.hosts import Host
from xonar_prefect.core.memory import peak_with_margin_mib
from xonar_prefect.core.models import Limits, Training
from xonar_prefect.core.planning import host_words
from xonar_prefect.core.planning.places import age_key

CODES = frozenset(
    {
        ReasonCode.DISK_FULL,
        ReasonCode.INSUFFICIENT_HOST_MEMORY,
        ReasonCode.INSUFFICIENT_CPU_THREADS,
        ReasonCode.INSUFFICIENT_SHARED_MEMORY,
        ReasonCode.OLDER_TRAINING_WAITS,
    }
)
"""The obstacles that a host can be."""

_PLENTY = 2**62


@dataclass(frozen=True, slots=True)
class HostNeed:
    """What a training must be given of its host, or what there is to give.

    Attributes:
        memory_mib: Main memory.
        cpu_threads: Processor threads; 0 where none were declared.
        shared_memory_mib: Shared memory; 0 where none was declared.
        memory_known: False where the memory is an even share, for want of anything better.
    """

    memory_mib: int
    cpu_threads: int = 0
    shared_memory_mib: int = 0
    memory_known: bool = True

    def lacks(self, room: HostNeed) -> ReasonCode | None:
        """Return what there is not enough room for; what is not needed cannot lack."""
        if self.memory_mib and self.memory_mib > room.memory_mib:
            return ReasonCode.INSUFFICIENT_HOST_MEMORY
        if self.cpu_threads and self.cpu_threads > room.cpu_threads:
            return ReasonCode.INSUFFICIENT_CPU_THREADS
        if self.shared_memory_mib and self.shared_memory_mib > room.shared_memory_mib:
            return ReasonCode.INSUFFICIENT_SHARED_MEMORY
        return None

    def less(self, other: HostNeed) -> HostNeed:
        """Return what is left of it without the other."""
        return HostNeed(
            self.memory_mib - other.memory_mib,
            self.cpu_threads - other.cpu_threads,
            self.shared_memory_mib - other.shared_memory_mib,
        )


def need_of(training: Training, host: Host, limits: Limits) -> HostNeed:
    """Return what a training must be given of this host.

    The larger of what was declared and what its kind was measured to use, with a margin; what was
    measured never asks for more than the host has, since it has run there before.
    """
    capacity = _PLENTY if host.memory_capacity_mib is None else host.memory_capacity_mib
    peaks = [profile.peak_host_memory_mib for profile in training.profiles.values()]
    measured = max((peak for peak in peaks if peak is not None), default=None)
    known = [] if training.host_memory_mib is None else [training.host_memory_mib]
    if measured is not None:
        known.append(min(peak_with_margin_mib(measured, limits), capacity))
    share = min(host.share_mib * max(1, training.gpus), capacity)
    return HostNeed(
        memory_mib=max(known, default=share),
        cpu_threads=training.cpu_threads or 0,
        shared_memory_mib=training.shared_memory_mib or 0,
        memory_known=bool(known),
    )


class HostRoom:
    """What the host still has for trainings, while a plan is made."""

    def __init__(self, host: Host, limits: Limits) -> None:
        self._host = host
        self._limits = limits
        self._has_rules = host != Host()
        self._shortage = None if host.disk is None else host_words.disk_shortage(host.disk)
        self._kept_for: Training | None = None
        self._needs: dict[str, HostNeed] = {}
        needs = [need_of(each.training, host, limits) for each in host.residents]
        self._trainings = len(needs)
        self._reserved = HostNeed(
            sum(
                max(need.memory_mib, each.used_memory_mib)
                for need, each in zip(needs, host.residents, strict=True)
            ),
            sum(need.cpu_threads for need in needs),
            sum(need.shared_memory_mib for need in needs),
        )
        self._room = self._what_is_left()

    def obstacle(self, training: Training) -> ReasonCode | None:
        """Return what of the host keeps a training, if anything does."""
        if not self._has_rules:
            return None
        if self._shortage is not None:
            return ReasonCode.DISK_FULL
        need, room = self._need(training), self._room
        lacking = need.lacks(room)
        older = self._kept_for
        if lacking is not None or older is None or age_key(training) <= age_key(older):
            return lacking
        takes_it_away = need.lacks(room.less(self._need(older))) is not None
        return ReasonCode.OLDER_TRAINING_WAITS if takes_it_away else None

    def use(self, training: Training) -> None:
        """Reserve what the training needs."""
        if not self._has_rules:
            return
        need, reserved = self._need(training), self._reserved
        self._trainings += 1
        self._reserved = HostNeed(
            reserved.memory_mib + need.memory_mib,
            reserved.cpu_threads + need.cpu_threads,
            reserved.shared_memory_mib + need.shared_memory_mib,
        )
        self._room = self._what_is_left()

    def keep_for(self, training: Training) -> None:
        """Let no later training take what this one needs, if it will get it when others end."""
        if self._kept_for is None and self._need(training).lacks(self._unreserved()) is None:
            self._kept_for = training

    @property
    def is_kept(self) -> bool:
        """Whether it is kept for somebody, so that later ones are kept out."""
        return self._kept_for is not None

    def never(self, training: Training) -> str | None:
        """Say why this host can never take the training, if so."""
        if not self._has_rules:
            return None
        host, need = self._host, self._need(training)
        asks = (
            ("host_memory_mib", need.memory_mib, host.memory_capacity_mib),
            ("cpu_threads", need.cpu_threads, host.cpu_threads),
            ("shared_memory_mib", need.shared_memory_mib, host.shared_memory_mib),
        )
        for variable, wanted, most in asks:
            if most is not None and wanted > most:
                return host_words.impossible(host, variable, wanted, most)
        return None

    def sentence(self, code: ReasonCode, training: Training) -> str:
        """Return in a sentence what an obstacle of this host means, with the arithmetic."""
        need, room = self._need(training), self._room
        if code is ReasonCode.OLDER_TRAINING_WAITS and self._kept_for is not None:
            return host_words.kept(self._kept_for.name, self._limits.max_wait_seconds)
        if code is ReasonCode.INSUFFICIENT_CPU_THREADS:
            return host_words.threads(self._host, room.cpu_threads, need.cpu_threads)
        if code is ReasonCode.INSUFFICIENT_SHARED_MEMORY:
            return host_words.shared_memory(
                self._host,
                room.shared_memory_mib,
                self._reserved.shared_memory_mib,
                need.shared_memory_mib,
            )
        if code is ReasonCode.INSUFFICIENT_HOST_MEMORY:
            return host_words.memory(
                self._host,
                room.memory_mib,
                self._reserved.memory_mib,
                self._trainings,
                need.memory_mib,
                known=need.memory_known,
            )
        return self._shortage or "The host has room again."

    def _need(self, training: Training) -> HostNeed:
        need = self._needs.get(training.run_id)  # it is asked for again and again
        if need is None:
            need = self._needs[training.run_id] = need_of(training, self._host, self._limits)
        return need

    def _unreserved(self) -> HostNeed:
        """Return what there would be for our trainings if none of them ran."""
        host = self._host
        return HostNeed(
            _left(host.memory_capacity_mib, host.foreign_memory_mib),
            _left(host.cpu_threads, 0),
            # Whose the pages in use are is not known, so what ours use may count twice.
            _left(host.shared_memory_mib, host.used_shared_memory_mib),
        )

    def _what_is_left(self) -> HostNeed:
        left = self._unreserved().less(self._reserved)
        return HostNeed(
            max(0, left.memory_mib), max(0, left.cpu_threads), max(0, left.shared_memory_mib)
        )


def _left(most: int | None, taken: int) -> int:
    return _PLENTY if most is None else max(0, most - taken)
