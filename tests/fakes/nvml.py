"""A fake `libnvidia-ml.so.1` for the real `pynvml`, and the hardware that it shows.

In a test, `loaded(directory)` lets pynvml load it in this process; a child process loads it with
`FakeNvml.environment()`. What it shows changes at once with `FakeNvml.show(...)`.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

SONAME = "libnvidia-ml.so.1"
STATE_VARIABLE = "FAKE_NVML_STATE"
EVERY_DEVICE = "*"
HANG = -1
_BYTES_PER_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeProcess:
    """A process on a device; `memory_mib` None is NVML's "not available"."""

    pid: int
    memory_mib: int | None
    kind: str = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSlice:
    """A MIG slice; `used_mib` None is the sum of its processes."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    total_mib: int = 19968
    used_mib: int | None = None
    gpu_instance: int = 1
    compute_instance: int = 0
    processes: tuple[FakeProcess, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeGpu:
    """A GPU; `used_mib` None is the sum of its processes, without the driver's reserve.

    `slices` None is a GPU whose MIG mode is off (or that has none: `mig_capable`).
    """

    uuid: str
    name: str = "Tesla V100-SXM2-32GB"
    total_mib: int = 32768
    used_mib: int | None = None
    reserved_mib: int = 450
    compute_mode: int = 0
    ecc_errors: int | None = 0
    rows_pending: bool | None = None
    pages_pending: bool | None = None
    mig_capable: bool = False
    slices: tuple[FakeSlice, ...] | None = None
    processes: tuple[FakeProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class FakeNvml:
    """The compiled library and its state file."""

    library: Path
    state: Path

    def show(self, *gpus: FakeGpu, failures: Mapping[tuple[str, str], int] | None = None) -> None:
        """Replace the hardware.

        Args:
            gpus: What NVML lists, in its order.
            failures: NVML error codes, or `HANG`, by function name and UUID (`EVERY_DEVICE` for
                all, and for functions of no device).
        """
        records: list[tuple[object, ...]] = []
        for gpu in gpus:
            records.append(
                (
                    "gpu",
                    gpu.uuid,
                    gpu.name,
                    gpu.total_mib * _BYTES_PER_MIB,
                    _used_bytes(gpu),
                    gpu.reserved_mib * _BYTES_PER_MIB,
                    gpu.compute_mode,
                    -1 if gpu.ecc_errors is None else gpu.ecc_errors,
                    -1 if gpu.rows_pending is None else int(gpu.rows_pending),
                    int(gpu.mig_capable or gpu.slices is not None),
                    int(gpu.slices is not None),
                    -1 if gpu.pages_pending is None else int(gpu.pages_pending),
                )
            )
            records += _process_records(gpu)
            for mig_slice in gpu.slices or ():
                records.append(
                    (
                        "slice",
                        gpu.uuid,
                        mig_slice.uuid,
                        mig_slice.name,
                        mig_slice.total_mib * _BYTES_PER_MIB,
                        _used_bytes(mig_slice),
                        mig_slice.gpu_instance,
                        mig_slice.compute_instance,
                    )
                )
                records += _process_records(mig_slice)
        records += [
            ("fail", function, code, device)
            for (function, device), code in (failures or {}).items()
        ]
        lines = ("\t".join(str(value) for value in record) for record in records)
        partial = self.state.with_suffix(".tmp")
        partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        partial.replace(self.state)

    def environment(self) -> dict[str, str]:
        """Return the variables with which a child process finds this library."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), STATE_VARIABLE: str(self.state)}

    def shut_down_behind_the_back(self) -> None:
        """Undo every initialisation of this process, as other code in it might do."""
        library = ctypes.CDLL(str(self.library))
        while library.nvmlShutdown() == 0:
            pass


def _used_bytes(device: FakeGpu | FakeSlice) -> int:
    if device.used_mib is not None:
        return device.used_mib * _BYTES_PER_MIB
    return sum(process.memory_mib or 0 for process in device.processes) * _BYTES_PER_MIB


def _process_records(device: FakeGpu | FakeSlice) -> list[tuple[object, ...]]:
    return [
        (
            "process",
            device.uuid,
            process.kind,
            process.pid,
            -1 if process.memory_mib is None else process.memory_mib * _BYTES_PER_MIB,
        )
        for process in device.processes
    ]


def compiler() -> str | None:
    """Return the C compiler, if there is one."""
    return shutil.which("gcc") or shutil.which("cc")


@functools.cache
def _compiled() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    library = directory / SONAME
    subprocess.run(
        [
            compiler() or "cc",
            *("-shared", "-fPIC", "-pthread", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"),
            *("-fvisibility=hidden", f"-Wl,-soname,{SONAME}"),
            *("-o", str(library), str(Path(__file__).with_suffix(".c"))),
        ],
        check=True,
    )
    return library


def build(directory: Path) -> FakeNvml:
    """Compile the library, once per process, and give it an empty state file in `directory`."""
    fake = FakeNvml(_compiled(), directory / "nvml-state.tsv")
    fake.show()
    return fake


@contextmanager
def loaded(directory: Path) -> Iterator[FakeNvml]:
    """Let this process's pynvml load the fake, whatever it has loaded before, for a while.

    Preloading by soname would last as long as the process and lose to a real driver that was
    loaded earlier; so pynvml's own `CDLL` is redirected and its loaded library forgotten.
    """
    import pynvml

    fake = build(directory)

    def load(name: str) -> ctypes.CDLL:
        return ctypes.CDLL(str(fake.library) if name == SONAME else name)

    with (
        mock.patch.dict(os.environ, {STATE_VARIABLE: str(fake.state)}),
        mock.patch.object(pynvml, "CDLL", load),
        mock.patch.object(pynvml, "nvmlLib", None),
        mock.patch.object(pynvml, "_nvmlGetFunctionPointer_cache", {}),
    ):
        try:
            yield fake
        finally:
            fake.shut_down_behind_the_back()


@contextmanager
def missing() -> Iterator[None]:
    """Let this process's pynvml find no driver library for a while."""
    import pynvml

    def refuse(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    with (
        mock.patch.object(pynvml, "CDLL", refuse),
        mock.patch.object(pynvml, "nvmlLib", None),
        mock.patch.object(pynvml, "_nvmlGetFunctionPointer_cache", {}),
    ):
        yield
