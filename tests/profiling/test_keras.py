"""Steps of real Keras trainings."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from xonar_prefect.profiling.keras import watching_keras
from xonar_prefect.profiling.marks import activated, step, steps
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.window import Window

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.skipif(find_spec("keras") is None, reason="Keras is not installed"),
]

BATCHES, BATCH = 6, 4


@pytest.fixture(scope="module")
def keras() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras
    return keras


@pytest.fixture
def session() -> Session:
    return Session(Window(), None)


@pytest.fixture
def watched(session: Session, keras: Any) -> Iterator[Session]:
    with activated(session), watching_keras():
        yield session


@pytest.fixture
def data() -> Any:
    import numpy as np

    return np.zeros((BATCHES * BATCH, 3), dtype="float32"), np.zeros((BATCHES * BATCH, 1))


@pytest.fixture
def model(keras: Any) -> Any:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    return model


def fit(model: Any, data: Any, **options: Any) -> Any:
    return model.fit(*data, batch_size=BATCH, verbose=0, **options)


def test_every_batch_of_fit_is_a_step_and_the_total_is_known(
    watched: Session, model: Any, data: Any
) -> None:
    fit(model, data, epochs=2)
    assert watched.progress.steps_done == watched.steps_total == 2 * BATCHES


def test_a_fit_that_goes_on_knows_what_is_left(watched: Session, model: Any, data: Any) -> None:
    fit(model, data, epochs=5, initial_epoch=3)
    assert watched.progress.steps_done == watched.steps_total == 2 * BATCHES


def test_one_fit_after_another_adds_up(watched: Session, model: Any, data: Any) -> None:
    for _ in range(2):
        fit(model, data)
    assert watched.progress.steps_done == watched.steps_total == 2 * BATCHES


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_data_of_unknown_size_has_no_total(watched: Session, model: Any) -> None:
    import numpy as np

    def batches() -> Iterator[Any]:
        for _ in range(3):
            yield np.zeros((BATCH, 3), dtype="float32"), np.zeros((BATCH, 1))

    model.fit(batches(), shuffle=False, verbose=0)
    assert watched.progress.steps_done == 3
    assert watched.steps_total is None


def test_validation_and_prediction_are_no_steps(watched: Session, model: Any, data: Any) -> None:
    fit(model, data, validation_data=data)
    model.evaluate(*data, batch_size=BATCH, verbose=0)
    model.predict(data[0], batch_size=BATCH, verbose=0)
    assert watched.progress.steps_done == BATCHES


def test_validation_time_is_not_stepping_time(
    watched: Session, model: Any, data: Any, keras: Any
) -> None:
    open_steps: list[bool] = []

    class Look(keras.callbacks.Callback):  # type: ignore[misc]
        async_safe = True

        def on_test_begin(self, logs: Any = None) -> None:
            open_steps.append(watched._began is not None)

    fit(model, data, epochs=2, validation_data=data, callbacks=[Look()])
    assert open_steps == [False, False]


def test_several_steps_in_one_execution_are_several_steps(
    watched: Session, keras: Any, data: Any
) -> None:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", steps_per_execution=3)
    fit(model, data)
    assert watched.progress.steps_done == watched.steps_total == BATCHES


def test_a_fit_inside_a_fit_is_a_part_of_it(
    watched: Session, model: Any, data: Any, keras: Any
) -> None:
    inner = keras.models.clone_model(model)
    inner.compile(optimizer="sgd", loss="mse")

    class Nested(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 0:
                fit(inner, data)

    fit(model, data, callbacks=[Nested()])
    assert watched.progress.steps_done == BATCHES


def test_a_fit_that_fails_leaves_no_open_step(
    watched: Session, model: Any, data: Any, keras: Any
) -> None:
    class Fail(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise ArithmeticError("loss is not finite")

    with pytest.raises(ArithmeticError):
        fit(model, data, callbacks=[Fail()])
    fit(model, data)
    assert watched.progress.steps_done == 2 + BATCHES


def test_marks_around_fit_win(watched: Session, model: Any, data: Any) -> None:
    for _ in steps(range(2)):
        fit(model, data)
    assert watched.progress.steps_done == 2


def test_evaluation_between_marked_steps_is_a_gap(watched: Session, model: Any, data: Any) -> None:
    with step():
        pass
    model.evaluate(*data, batch_size=BATCH, verbose=0)
    assert watched.progress.steps_done == 1


def test_keras_is_left_as_it_was_found(session: Session, keras: Any, model: Any, data: Any) -> None:
    def looked_at() -> list[Any]:
        return [
            keras.Model.fit,
            keras.callbacks.CallbackList.on_train_batch_begin,
            keras.callbacks.CallbackList.on_epoch_end,
        ]

    before = looked_at()
    with activated(session), watching_keras(), watching_keras():
        # A wrapper equals what it wraps, so identity is compared.
        assert all(now is not then for now, then in zip(looked_at(), before, strict=True))
    assert all(now is then for now, then in zip(looked_at(), before, strict=True))
    fit(model, data)
    assert session.progress.steps_done == 0


def test_watching_adds_no_callback(watched: Session, model: Any, data: Any, keras: Any) -> None:
    # One that is not safe for it would switch off asynchronous callbacks, where Keras has them.
    callbacks = keras.callbacks.CallbackList(
        [keras.callbacks.Callback(), keras.callbacks.History()],
        model=model,
        epochs=1,
        steps=BATCHES,
    )
    fit(model, data, callbacks=callbacks)
    assert len(callbacks.callbacks) == 2
    assert watched.progress.steps_done == BATCHES


LATE_IMPORT = """
from xonar_prefect.profiling.keras import watching_keras
from xonar_prefect.profiling.marks import activated
from xonar_prefect.profiling.session import Session
from xonar_prefect.profiling.window import Window
import sys
session = Session(Window(), None)
with activated(session), watching_keras():
    assert "keras" not in sys.modules and "tensorflow" not in sys.modules
    import tensorflow as tf
    import numpy as np
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    model.fit(np.zeros((8, 3)), np.zeros((8, 1)), batch_size=4, verbose=0)
print(session.progress.steps_done)
"""


def test_keras_may_be_imported_while_the_training_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE_IMPORT], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "2"
