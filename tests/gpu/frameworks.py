"""What a load computes and allocates with: one class per framework, all of them alike.

`compute` works and says how many seconds of it were active; `hold` takes memory and keeps it;
`account_mib` is the peak by the framework's own account.
"""

from __future__ import annotations

import hashlib
import os
import resource
import time
from collections.abc import Callable
from typing import Any

_MIB = 1 << 20


class Processor:
    """Computes on the processor core, with nothing but the standard library."""

    on_gpu = False
    gpus_visible = None

    def __init__(self) -> None:
        self.description = "processor"
        self._block = bytes(1 << 16)
        self._held: list[bytes] = []

    def compute(self, amount: int) -> float:
        """Compute and return how many seconds of it were active."""
        started = time.process_time()
        for _ in range(amount):
            hashlib.sha256(self._block).digest()
        return time.process_time() - started

    def hold(self, mib: int) -> None:
        """Take memory and keep it; raises MemoryError."""
        self._held.append(os.urandom(1) * (mib * _MIB))

    def account_mib(self) -> float | None:
        """Return the peak by its own account: what it took."""
        return sum(map(len, self._held)) / _MIB

    @staticmethod
    def limit(mib: int) -> None:
        """Cap its memory beyond what it has now: a stand-in for the cap of an allocator."""
        with open("/proc/self/statm", encoding="ascii") as statm:  # noqa: PTH123
            pages = int(statm.read().split()[5])  # of data and stack
        bytes_ = pages * resource.getpagesize() + mib * _MIB
        resource.setrlimit(resource.RLIMIT_DATA, (bytes_, bytes_))


class Torch:
    """Computes with PyTorch; the GPU's own clock tells how long it was active."""

    def __init__(self) -> None:
        import torch

        self.gpus_visible = torch.cuda.device_count()
        self.on_gpu = self.gpus_visible > 0
        self.description = f"torch {torch.__version__}"
        self._torch = torch
        device = "cuda" if self.on_gpu else "cpu"
        size = 2048 if self.on_gpu else 256
        self._device = device
        self._matrix = torch.rand((size, size), device=device)
        self._held: list[Any] = []

    def hold(self, mib: int) -> None:
        """Take memory and keep it; raises torch.OutOfMemoryError, a RuntimeError."""
        self._held.append(
            self._torch.ones(mib * _MIB // 4, dtype=self._torch.float32, device=self._device)
        )

    def account_mib(self) -> float | None:
        """Return the peak by the allocator's own account."""
        if not self.on_gpu:
            return None
        return float(self._torch.cuda.max_memory_reserved()) / _MIB

    def compute(self, amount: int) -> float:
        """Compute and return how many seconds of it were active."""
        cuda = self._torch.cuda
        started_at_s = time.perf_counter()
        if self.on_gpu:
            begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
        for _ in range(amount):
            self._torch.mm(self._matrix, self._matrix)
        if not self.on_gpu:
            return time.perf_counter() - started_at_s
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


class TensorFlow:
    """Computes with TensorFlow; active is the time until the result is there."""

    def __init__(self) -> None:
        import tensorflow

        self.gpus_visible = len(tensorflow.config.list_physical_devices("GPU"))
        self.on_gpu = self.gpus_visible > 0
        self.description = f"tensorflow {tensorflow.__version__}"
        size = 2048 if self.on_gpu else 256
        matrix = tensorflow.random.uniform((size, size))

        @tensorflow.function  # type: ignore[untyped-decorator]
        def multiply(amount: Any) -> Any:
            result = matrix
            for _ in tensorflow.range(amount):
                result = tensorflow.nn.relu(tensorflow.matmul(matrix, result) / size)
            return tensorflow.reduce_sum(result)

        self._multiply = multiply
        self._amount = tensorflow.constant
        self._tensorflow = tensorflow
        self._held: list[Any] = []

    def hold(self, mib: int) -> None:
        """Take memory and keep it; raises ResourceExhaustedError."""
        self._held.append(self._tensorflow.ones((mib * _MIB // 4,)))

    def account_mib(self) -> float | None:
        """Return the peak by the allocator's own account."""
        if not self.on_gpu:
            return None
        info = self._tensorflow.config.experimental.get_memory_info("GPU:0")
        return float(info["peak"]) / _MIB

    def compute(self, amount: int) -> float:
        """Compute and return how many seconds of it were active."""
        started_at_s = time.perf_counter()
        self._multiply(self._amount(amount)).numpy()
        return time.perf_counter() - started_at_s


class Jax:
    """Computes with JAX; active is the time until the result is there."""

    def __init__(self) -> None:
        import jax

        gpus = [device for device in jax.local_devices() if device.platform == "gpu"]
        self.gpus_visible = len(gpus)
        self.on_gpu = bool(gpus)
        self.description = f"jax {jax.__version__}"
        self._jax = jax
        size = 2048 if self.on_gpu else 256
        self._matrix = jax.numpy.ones((size, size)) / size

        def multiply(amount: Any) -> Any:
            def once(_index: Any, result: Any) -> Any:
                return self._matrix @ result

            return jax.lax.fori_loop(0, amount, once, self._matrix).sum()

        self._multiply = jax.jit(multiply)
        self._held: list[Any] = []

    def hold(self, mib: int) -> None:
        """Take memory and keep it; raises XlaRuntimeError, a RuntimeError."""
        self._held.append(self._jax.numpy.ones((mib * _MIB // 4,)).block_until_ready())

    def account_mib(self) -> float | None:
        """Return the peak by the allocator's own account."""
        stats = self._jax.local_devices()[0].memory_stats() or {}
        peak = stats.get("peak_bytes_in_use")
        return None if peak is None else float(peak) / _MIB

    def compute(self, amount: int) -> float:
        """Compute and return how many seconds of it were active."""
        started_at_s = time.perf_counter()
        self._multiply(amount).block_until_ready()
        return time.perf_counter() - started_at_s


FRAMEWORKS: dict[str, Callable[[], Any]] = {
    "torch": Torch,
    "tensorflow": TensorFlow,
    "jax": Jax,
    "processor": Processor,
}
