"""Train one network with two workers that exchange their gradients at every step.

The first worker runs in the flow run's own process, the second is a child of it. Keras 3 cannot
`fit` under this strategy, so the loop is written out.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import digits_data
import numpy as np
from prefect import flow, get_run_logger

import xonar_prefect
from xonar_prefect import xonar_task

WORKERS = 2
READY = "ready"


def _cluster() -> list[str]:
    """Return addresses on this host that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(WORKERS)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def _take_part(cluster: list[str], index: int) -> None:
    task = {"type": "worker", "index": index}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": cluster}, "task": task})


@contextmanager
def _second_worker(cluster: list[str], **arguments: int) -> Iterator[None]:
    """Start the second worker and wait until it is ready; end it with the block.

    Raises:
        RuntimeError: It ended before it was ready, or with an error.
    """
    command = [sys.executable, __file__, json.dumps({"cluster": cluster, **arguments})]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with worker:
        try:
            if worker.stdout is None or worker.stdout.readline().strip() != READY:
                raise RuntimeError(f"The second worker ended at once with code {worker.wait()}.")
            yield
            if worker.wait(timeout=60) != 0:
                raise RuntimeError(f"The second worker failed with code {worker.returncode}.")
        finally:
            worker.kill()


def _leave_with_parent() -> None:
    """End this process as soon as its parent is gone, however the parent ended."""
    sys.stdin.read()
    os._exit(1)


def _learn(index: int, *, epochs: int, batch_size: int, filters: int, seed: int) -> float:
    """Train as one of the workers; return the accuracy on digits that were kept aside."""
    import keras
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(seed)  # the same first weights on all workers
    options = tf.distribute.experimental.CommunicationOptions(
        # NCCL refuses two workers on one GPU; a ring over the network does not.
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    training, test = digits_data.load(seed, side=32)
    share = batch_size // WORKERS
    steps_per_epoch = len(training.labels) // batch_size
    with strategy.scope():
        model = keras.Sequential(
            [
                layers.Input(training.images.shape[1:]),
                layers.Conv2D(filters, 3, activation="relu", padding="same"),
                layers.MaxPooling2D(),
                layers.Conv2D(2 * filters, 3, activation="relu", padding="same"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    @tf.function
    def learn(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        def on_worker(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                error = loss(labels, model(images, training=True)) / batch_size
            gradients = tape.gradient(error, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return error

        return strategy.run(on_worker, args=(images, labels))

    def batches() -> Iterator[digits_data.Digits]:
        for epoch in range(epochs):
            order = np.random.default_rng(seed + epoch).permutation(len(training.labels))
            for step in range(steps_per_epoch):
                mine = order[step * batch_size + index * share :][:share]
                yield digits_data.Digits(training.images[mine], training.labels[mine])

    steps = batches()
    if index == 0:
        steps = xonar_prefect.steps(steps, total=epochs * steps_per_epoch)
    for images, labels in steps:
        learn(tf.constant(images), tf.constant(labels)).numpy()

    guesses = model(test.images).numpy().argmax(axis=1)
    return float((guesses == test.labels).mean())


@xonar_task(profile_by=["batch_size", "filters"])
def train(epochs: int, batch_size: int, filters: int, seed: int) -> float:
    """Train with two workers and return the accuracy on digits that were kept aside."""
    cluster = _cluster()
    arguments = {"epochs": epochs, "batch_size": batch_size, "filters": filters, "seed": seed}
    with _second_worker(cluster, **arguments):
        _take_part(cluster, 0)
        return _learn(0, **arguments)


@flow(name="digits-distributed", log_prints=True)
def digits_distributed(
    epochs: int = 10, batch_size: int = 64, filters: int = 48, seed: int = 0
) -> float:
    """Recognise handwritten digits with two workers of MultiWorkerMirroredStrategy."""
    accuracy: float = train(epochs, batch_size, filters, seed)
    get_run_logger().info("Accuracy on unseen digits after %d epochs: %.3f", epochs, accuracy)
    return accuracy


def _be_second_worker() -> None:
    arguments = json.loads(sys.argv[1])
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    import tensorflow  # noqa: F401 - what can fail should fail before the others wait for us

    _take_part(arguments.pop("cluster"), 1)
    print(READY, flush=True)  # noqa: T201 - the other end of `_second_worker`
    _learn(1, **arguments)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _be_second_worker()
    else:
        digits_distributed()
