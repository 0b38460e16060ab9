"""Real trainings of which the active share is set: each computes a while and waits a while.

`Waiting` is what a step waits for: nothing, a pause, or a read from somebody who takes his time,
as a slow disk or a network store does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Wait = Callable[[], None]
CHUNK_BYTES = 1 << 16


def no_wait() -> None:
    """Wait for nothing."""


@dataclass
class Pause:
    """A pause in the loop, as for other work of the host."""

    seconds: float

    def __call__(self) -> None:
        """Wait."""
        time.sleep(self.seconds)


@dataclass
class ThrottledRead:
    """A read from a pipe whose other end, another process, is slow."""

    seconds: float
    requests: int
    answers: int

    def __call__(self) -> None:
        """Ask for a chunk and wait until all of it is there."""
        os.write(self.requests, f"{self.seconds:.9f}\n".encode())
        left = CHUNK_BYTES
        while left > 0:
            left -= len(os.read(self.answers, left))


def keras_fit() -> Callable[[int, Wait], None]:
    """Return a training by Keras `fit`; it waits in a callback, since data are read ahead."""
    import keras
    import numpy as np

    model = keras.Sequential(
        [
            keras.layers.Input((28, 28, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, labels = np.random.rand(32, 28, 28, 1).astype("float32"), np.zeros(32, "int32")

    def train(steps: int, wait: Wait) -> None:
        waiting = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda *_, **__: wait())
        batches = images.repeat(steps, axis=0), labels.repeat(steps, axis=0)
        model.fit(*batches, batch_size=32, shuffle=False, verbose=0, callbacks=[waiting])

    return train


def tensorflow_loop() -> Callable[[int, Wait], None]:
    """Return a loop over a `tf.function`, its steps marked by the user."""
    import tensorflow as tf

    import xonar_prefect

    weights = tf.Variable(tf.random.normal((512, 512), stddev=0.02))
    data = tf.random.normal((256, 512))

    @tf.function  # type: ignore[untyped-decorator]
    def learn() -> Any:
        with tf.GradientTape() as tape:
            result = data
            for _ in range(6):
                result = tf.nn.relu(result @ weights)
            loss = tf.reduce_sum(tf.square(result))
        weights.assign_sub(1e-6 * tape.gradient(loss, weights))
        return loss

    def train(steps: int, wait: Wait) -> None:
        for _ in xonar_prefect.steps(range(steps)):
            wait()
            learn().numpy()

    return train


def torch_loop() -> Callable[[int, Wait], None]:
    """Return a loop over a PyTorch optimizer; nobody marks its steps."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = torch.nn.Sequential(
        *(layer for _ in range(4) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU()))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.rand(256, 512)

    def train(steps: int, wait: Wait) -> None:
        for _ in range(steps):
            wait()
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()

    return train


def jax_loop() -> Callable[[int, Wait], None]:
    """Return a loop over a compiled JAX function, its steps marked by the user."""
    import jax
    import jax.numpy as jnp

    import xonar_prefect

    weights = jax.random.normal(jax.random.key(0), (512, 512)) * 0.02
    data = jax.random.normal(jax.random.key(1), (256, 512))

    def loss(weights: Any) -> Any:
        result = data
        for _ in range(6):
            result = jax.nn.relu(result @ weights)
        return jnp.sum(result**2)

    learn = jax.jit(lambda weights: weights - 1e-6 * jax.grad(loss)(weights))

    def train(steps: int, wait: Wait) -> None:
        nonlocal weights
        for _ in xonar_prefect.steps(range(steps)):
            wait()
            weights = learn(weights).block_until_ready()

    return train


TRAININGS: dict[str, tuple[str, Callable[[], Callable[[int, Wait], None]]]] = {
    "Keras fit": ("keras", keras_fit),
    "TensorFlow loop": ("tensorflow", tensorflow_loop),
    "PyTorch loop": ("torch", torch_loop),
    "JAX loop": ("jax", jax_loop),
}
