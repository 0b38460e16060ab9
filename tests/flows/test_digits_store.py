from __future__ import annotations

import time

import numpy as np
import pytest

pytest.importorskip("sklearn")


@pytest.fixture
def digits():  # type: ignore[no-untyped-def]
    import digits_data

    return digits_data.load(seed=0, side=32)[0]


def test_every_full_batch_arrives_once_an_epoch(digits) -> None:  # type: ignore[no-untyped-def]
    import digits_store

    with digits_store.serve(digits, batch_size=400, megabytes_per_second=1000.0) as store:
        batches = list(store.epoch(seed=0))

    assert len(store) == len(batches) == len(digits.labels) // 400
    read = sorted(image.tobytes() for batch in batches for image in batch.images)
    assert read == sorted(image.tobytes() for image in digits.images[: 400 * len(store)])


def test_batches_keep_images_and_labels_together(digits) -> None:  # type: ignore[no-untyped-def]
    import digits_store

    with digits_store.serve(digits, batch_size=64, megabytes_per_second=1000.0) as store:
        batch = store.fetch(2)

    assert np.array_equal(batch.images, digits.images[128:192])
    assert np.array_equal(batch.labels, digits.labels[128:192])


def test_seed_decides_the_order_of_batches(digits) -> None:  # type: ignore[no-untyped-def]
    import digits_store

    with digits_store.serve(digits, batch_size=64, megabytes_per_second=1000.0) as store:
        first, again, other = (
            [batch.labels.tolist() for batch in store.epoch(seed)] for seed in (0, 0, 1)
        )

    assert first == again
    assert first != other


def test_reader_waits_at_least_as_long_as_the_rate_demands(digits) -> None:  # type: ignore[no-untyped-def]
    import digits_store

    with digits_store.serve(digits, batch_size=128, megabytes_per_second=8.0) as store:
        store.fetch(0)  # the kernel lets the first segments of a connection pass
        begun, computed = time.perf_counter(), time.thread_time()
        read = sum(store.fetch(index).images.nbytes for index in range(1, 5))
        waited, computed = time.perf_counter() - begun, time.thread_time() - computed

    assert waited > 0.8 * read / 8e6
    assert computed < waited / 2
