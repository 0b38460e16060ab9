"""The data of these flows: the 1797 handwritten digits that ship in scikit-learn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TEST_SHARE = 0.2
DIGIT_SIDE = 8


class Digits(NamedTuple):
    """Grey images (count, side, side, 1) with values from 0 to 1, and the digit on each."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def load(seed: int, side: int = DIGIT_SIDE) -> tuple[Digits, Digits]:
    """Return the digits to train on and those to test with.

    Args:
        seed: Decides which digits are kept for the test.
        side: Width and height of the images; a multiple of 8, the size they were scanned at.

    Raises:
        ValueError: `side` is no multiple of 8.
    """
    from sklearn.datasets import load_digits

    if side % DIGIT_SIDE:
        raise ValueError(f"side is {side}; it must be a multiple of {DIGIT_SIDE}.")
    data = load_digits()
    pixels = np.ones((side // DIGIT_SIDE, side // DIGIT_SIDE), np.float32)
    images = np.kron(data.images.astype(np.float32) / 16, pixels)[..., np.newaxis]
    order = np.random.default_rng(seed).permutation(len(images))
    images, labels = images[order], data.target[order].astype(np.int64)
    kept = round(len(images) * TEST_SHARE)
    return Digits(images[kept:], labels[kept:]), Digits(images[:kept], labels[:kept])
