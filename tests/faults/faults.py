"""What can be broken: each fault strikes once and is mended after a while."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from tests.faults.cluster import Cluster, Worker
from tests.faults.phases import Phase
from tests.waiting import until
from xonar_prefect.core.ledger import LedgerEntry
from xonar_prefect.worker.processes import send_signal


@dataclass(frozen=True, slots=True)
class Target:
    """The training in whose life a fault strikes.

    Attributes:
        worker: The worker that has it; frozen while the fault strikes.
        entry: What its ledger says.
    """

    worker: Worker
    entry: LedgerEntry


class Fault(ABC):
    """Something that can be broken.

    Attributes:
        name: Its name.
        breaks: What it breaks; two faults never break one thing at once.
        seconds: How long it lasts at most; how long it does is drawn.
        phases: When it can strike.
        leaves_frozen: The worker stays frozen until it is mended.
    """

    name: ClassVar[str]
    breaks: ClassVar[str]
    seconds: ClassVar[float] = 5.0
    phases: ClassVar[tuple[Phase, ...]] = tuple(Phase)
    leaves_frozen: ClassVar[bool] = False

    @abstractmethod
    def strike(self, cluster: Cluster, target: Target) -> None:
        """Break it."""

    def mend(self, cluster: Cluster, target: Target) -> None:  # noqa: B027 - not all need it
        """Mend it."""

    def thing(self, target: Target) -> str:
        """Return what it breaks, by name."""
        return self.breaks

    def victims(self, target: Target) -> tuple[str, ...]:
        """Return the runs whose own processes it hits: they may end for it."""
        return ()


class _OfWorker(Fault):
    breaks = "worker"

    def mend(self, cluster: Cluster, target: Target) -> None:
        target.worker.start()

    def thing(self, target: Target) -> str:
        return target.worker.name


class WorkerKilled(_OfWorker):
    """A worker dies at once."""

    name = "worker killed"

    def strike(self, cluster: Cluster, target: Target) -> None:
        target.worker.end(signal.SIGKILL)


class WorkerTerminated(_OfWorker):
    """A worker is asked to stop, as by a service manager."""

    name = "worker terminated"

    def strike(self, cluster: Cluster, target: Target) -> None:
        target.worker.end(signal.SIGTERM)


class WorkerFrozen(_OfWorker):
    """A worker stands still and goes on with an old view, as after a suspended host."""

    name = "worker frozen"
    leaves_frozen = True

    def strike(self, cluster: Cluster, target: Target) -> None:
        """Leave it as it is: it is frozen now."""

    def mend(self, cluster: Cluster, target: Target) -> None:
        assert target.worker.life is not None
        target.worker.life.thaw()


class HostRestarted(_OfWorker):
    """A worker and all processes of its trainings are gone at once."""

    name = "host restarted"

    def strike(self, cluster: Cluster, target: Target) -> None:
        target.worker.end(signal.SIGKILL)

        def all_gone() -> bool:
            # Again and again: what is just being started is found only a moment later.
            pids = [
                pid
                for run_directory, pids in cluster.processes().items()
                if run_directory.startswith(f"{target.worker.home}/")
                for pid in pids
            ]
            send_signal(pids, signal.SIGKILL)
            return not pids and not target.worker.alive

        until(all_gone)

    def victims(self, target: Target) -> tuple[str, ...]:
        return tuple(entry.run_id for entry in target.worker.open_entries())


class _OfTraining(Fault):
    breaks = "training"
    seconds = 0.0
    phases = (Phase.LAUNCH, Phase.RUN, Phase.DRAIN)

    def victims(self, target: Target) -> tuple[str, ...]:
        return (target.entry.run_id,)

    def pids(self, cluster: Cluster, target: Target) -> list[int]:
        return cluster.processes().get(target.entry.run_directory, [])


class TreeKilled(_OfTraining):
    """All processes of a training are killed."""

    name = "training killed with its launcher"

    def strike(self, cluster: Cluster, target: Target) -> None:
        send_signal(self.pids(cluster, target), signal.SIGKILL)


class TrainingKilled(_OfTraining):
    """A training's command is killed, as by the host's out-of-memory killer."""

    name = "training killed"
    phases = (Phase.RUN,)

    def strike(self, cluster: Cluster, target: Target) -> None:
        diary = cluster.diary.of(target.entry.run_id)
        send_signal({entry.pid for entry in diary}, signal.SIGKILL)


class LauncherKilled(_OfTraining):
    """Only the launcher of a training is killed; the training itself goes on."""

    name = "launcher killed"

    def strike(self, cluster: Cluster, target: Target) -> None:
        alone = [pid for pid in self.pids(cluster, target) if _is_launcher(pid)]
        send_signal(alone, signal.SIGKILL)


class ServerKilled(Fault):
    """The server dies at once."""

    name = "server killed"
    breaks = "server"

    def strike(self, cluster: Cluster, target: Target) -> None:
        cluster.server.end(signal.SIGKILL)

    def mend(self, cluster: Cluster, target: Target) -> None:
        cluster.server.start()


class ServerTerminated(ServerKilled):
    """The server is restarted in order."""

    name = "server terminated"

    def strike(self, cluster: Cluster, target: Target) -> None:
        cluster.server.end(signal.SIGTERM)


class ServerFrozen(Fault):
    """The server accepts connections and does not answer."""

    name = "server frozen"
    breaks = "server"

    def strike(self, cluster: Cluster, target: Target) -> None:
        assert cluster.server.life is not None
        cluster.server.life.freeze()

    def mend(self, cluster: Cluster, target: Target) -> None:
        assert cluster.server.life is not None
        cluster.server.life.thaw()


class DatabaseFails(Fault):
    """The server's database is killed (PostgreSQL) or locked (SQLite)."""

    name = "database fails"
    breaks = "database"

    def strike(self, cluster: Cluster, target: Target) -> None:
        cluster.database.fail()

    def mend(self, cluster: Cluster, target: Target) -> None:
        cluster.database.recover()


class StoreLocked(Fault):
    """Somebody holds the write lock of a worker's store."""

    name = "store locked"
    breaks = "store"

    def strike(self, cluster: Cluster, target: Target) -> None:
        assert target.worker.life is not None
        target.worker.life.thaw()  # it may hold the lock itself
        target.worker.store_lock.take()

    def mend(self, cluster: Cluster, target: Target) -> None:
        target.worker.store_lock.give_back()


class NetworkCut(Fault):
    """Connections to the server are reset."""

    name = "network cut"
    breaks = "network"

    def strike(self, cluster: Cluster, target: Target) -> None:
        cluster.proxy.cut()

    def mend(self, cluster: Cluster, target: Target) -> None:
        cluster.proxy.heal()


class NetworkStalled(NetworkCut):
    """Connections to the server stand, and nothing passes."""

    name = "network stalled"

    def strike(self, cluster: Cluster, target: Target) -> None:
        cluster.proxy.stall()


def _is_launcher(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123 - as /proc is read elsewhere
            return b"launcher.py" in file.read()
    except OSError:
        return False


FAULTS: tuple[Fault, ...] = (
    WorkerKilled(),
    WorkerTerminated(),
    WorkerFrozen(),
    HostRestarted(),
    TreeKilled(),
    TrainingKilled(),
    LauncherKilled(),
    ServerKilled(),
    ServerTerminated(),
    ServerFrozen(),
    DatabaseFails(),
    StoreLocked(),
    NetworkCut(),
    NetworkStalled(),
)
