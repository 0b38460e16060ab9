from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn")


def test_no_digit_is_both_trained_on_and_tested_with() -> None:
    import digits_data

    training, test = digits_data.load(seed=0)

    assert len(training.labels) + len(test.labels) == 1797
    together = np.concatenate([training.images, test.images]).reshape(1797, -1)
    whole = digits_data.load(seed=1)
    other = np.concatenate([whole[0].images, whole[1].images]).reshape(1797, -1)
    assert sorted(map(bytes, together)) == sorted(map(bytes, other))


def test_same_seed_gives_the_same_split() -> None:
    import digits_data

    first, second = digits_data.load(seed=3), digits_data.load(seed=3)

    assert all(
        np.array_equal(one.images, other.images) and np.array_equal(one.labels, other.labels)
        for one, other in zip(first, second, strict=True)
    )


def test_larger_images_show_the_same_digits() -> None:
    import digits_data

    (small, _), (large, _) = digits_data.load(seed=0), digits_data.load(seed=0, side=32)

    assert large.images.shape == (len(small.images), 32, 32, 1)
    assert np.array_equal(large.images[:, ::4, ::4], small.images)
    assert 0.0 <= large.images.min() < large.images.max() == 1.0


def test_side_that_does_not_fit_the_scans_is_refused() -> None:
    import digits_data

    with pytest.raises(ValueError, match="multiple of 8"):
        digits_data.load(seed=0, side=12)
