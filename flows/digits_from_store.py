"""Train on handwritten digits from a slow store: bound by reading, mostly idle."""

from __future__ import annotations

from collections.abc import Iterator

import digits_data
import digits_store
from prefect import flow, get_run_logger

from xonar_prefect import xonar_task


@xonar_task(profile_by=["batch_size", "megabytes_per_second"])
def train(epochs: int, batch_size: int, megabytes_per_second: float, seed: int) -> float:
    """Train with Keras `fit` on batches that are fetched one by one; return the accuracy."""
    import keras
    import tensorflow as tf
    from keras import layers

    keras.utils.set_random_seed(seed)
    training, test = digits_data.load(seed, side=32)
    shape = training.images.shape[1:]
    model = keras.Sequential(
        [
            layers.Input(shape),
            layers.Conv2D(16, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )
    # Compiled ahead (XLA), convolutions are several times slower on a processor core.
    model.compile(
        optimizer="adam",
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=False,
    )
    with digits_store.serve(
        training, batch_size=batch_size, megabytes_per_second=megabytes_per_second
    ) as store:

        def batches() -> Iterator[digits_data.Digits]:
            for epoch in range(epochs):
                yield from store.epoch(seed + epoch)

        dataset = tf.data.Dataset.from_generator(
            batches,
            output_signature=(
                tf.TensorSpec((batch_size, *shape), tf.float32),
                tf.TensorSpec((batch_size,), tf.int64),
            ),
        )
        model.fit(dataset, epochs=epochs, steps_per_epoch=len(store), shuffle=False, verbose=0)
    _, accuracy = model.evaluate(test.images, test.labels, verbose=0)
    return float(accuracy)


@flow(name="digits-from-store", log_prints=True)
def digits_from_store(
    epochs: int = 16, batch_size: int = 64, megabytes_per_second: float = 5.0, seed: int = 0
) -> float:
    """Recognise handwritten digits that have to be fetched from a slow store."""
    accuracy: float = train(epochs, batch_size, megabytes_per_second, seed)
    get_run_logger().info("Accuracy on unseen digits after %d epochs: %.3f", epochs, accuracy)
    return accuracy


if __name__ == "__main__":
    digits_from_store()
