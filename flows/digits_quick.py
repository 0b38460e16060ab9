"""Train a small dense network with a loop of one's own: computes and reads in turn."""

from __future__ import annotations

import digits_data
import digits_store
from prefect import flow, get_run_logger

import xonar_prefect
from xonar_prefect import xonar_task


@xonar_task(profile_by=["batch_size", "units", "megabytes_per_second"])
def train(
    epochs: int, batch_size: int, units: int, megabytes_per_second: float, seed: int
) -> float:
    """Train step by step and return the accuracy on digits that were kept aside."""
    import keras
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(seed)
    training, test = digits_data.load(seed, side=32)
    model = keras.Sequential(
        [
            layers.Input(training.images.shape[1:]),
            layers.Flatten(),
            layers.Dense(units, activation="relu"),
            layers.Dense(units, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(3e-4)
    optimizer.build(model.trainable_variables)

    @tf.function
    def learn(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            error = loss(labels, model(images, training=True))
        gradients = tape.gradient(error, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    with digits_store.serve(
        training, batch_size=batch_size, megabytes_per_second=megabytes_per_second
    ) as store:
        batches = (batch for epoch in range(epochs) for batch in store.epoch(seed + epoch))
        for images, labels in xonar_prefect.steps(batches, total=epochs * len(store)):
            learn(tf.constant(images), tf.constant(labels))

    guesses = model(test.images).numpy().argmax(axis=1)
    return float((guesses == test.labels).mean())


@flow(name="digits-quick", log_prints=True)
def digits_quick(
    epochs: int = 20,
    batch_size: int = 128,
    units: int = 1024,
    megabytes_per_second: float = 20.0,
    seed: int = 0,
) -> float:
    """Recognise handwritten digits with a small dense network."""
    accuracy: float = train(epochs, batch_size, units, megabytes_per_second, seed)
    get_run_logger().info("Accuracy on unseen digits after %d epochs: %.3f", epochs, accuracy)
    return accuracy


if __name__ == "__main__":
    digits_quick()
