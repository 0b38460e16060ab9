"""Train a convolutional network on handwritten digits: bound by computation."""

from __future__ import annotations

import digits_data
from prefect import flow, get_run_logger

from xonar_prefect import xonar_task


@xonar_task(profile_by=["batch_size", "filters"])
def train(epochs: int, batch_size: int, filters: int, seed: int) -> float:
    """Train with Keras `fit` and return the accuracy on digits that were kept aside."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(seed)
    training, test = digits_data.load(seed, side=32)
    model = keras.Sequential(
        [
            layers.Input(training.images.shape[1:]),
            layers.Conv2D(filters, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * filters, 3, activation="relu", padding="same"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * filters, 3, activation="relu", padding="same"),
            layers.Flatten(),
            layers.Dropout(0.3),
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
    full_batches = len(training.labels) // batch_size * batch_size
    model.fit(
        training.images[:full_batches],
        training.labels[:full_batches],
        batch_size=batch_size,
        epochs=epochs,
        verbose=0,
    )
    _, accuracy = model.evaluate(test.images, test.labels, verbose=0)
    return float(accuracy)


@flow(name="digits-cnn", log_prints=True)
def digits_cnn(epochs: int = 12, batch_size: int = 64, filters: int = 48, seed: int = 0) -> float:
    """Recognise handwritten digits with a convolutional network."""
    accuracy: float = train(epochs, batch_size, filters, seed)
    get_run_logger().info("Accuracy on unseen digits after %d epochs: %.3f", epochs, accuracy)
    return accuracy


if __name__ == "__main__":
    digits_cnn()
