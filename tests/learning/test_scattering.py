"""The scattering transform: its own definition by plain loops, and what a record's features are."""

import math

import numpy as np
import pytest
import torch

from coinflower.learning.scattering import ANGLES, CHANNELS, _scatter, scattered


def images(count, side=12, seed=0):
    return np.random.default_rng(seed).random((count, 1, side, side)).astype(np.float32)


def wavelet(scale, angle, reach):
    """A Morlet wavelet by its formula, at every pixel up to a distance."""
    width, frequency, slant = 0.8 * 2**scale, 3 * math.pi / 4 / 2**scale, 0.5
    turned = (3 - angle) * math.pi / 8
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    along, across = y * math.cos(turned) + x * math.sin(turned), 0.0
    across = x * math.cos(turned) - y * math.sin(turned)
    bell = np.exp(-(along**2 + slant**2 * across**2) / (2 * width**2))
    bell *= slant / (2 * math.pi * width**2)
    wave = bell * np.exp(1j * frequency * along)
    return wave - wave.sum() / bell.sum() * bell


def blur(reach):
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    return np.exp(-(y**2 + x**2) / (2 * 1.6**2)) / (2 * math.pi * 1.6**2)


def convolved(image, kernel):
    """Convolution on an image that continues at its other side, pixel by pixel of the kernel."""
    reach = len(kernel) // 2
    total = np.zeros(image.shape, dtype=complex)
    for row in range(-reach, reach + 1):
        for column in range(-reach, reach + 1):
            total += kernel[row + reach, column + reach] * np.roll(image, (row, column), (0, 1))
    return total


def naive(image):
    """The features of one image, not thinned out before the end."""
    padded = np.pad(image, 4, mode="reflect")
    fine = [abs(convolved(padded, wavelet(0, angle, 9))) for angle in range(ANGLES)]
    coarse = [wavelet(1, angle, 9) for angle in range(ANGLES)]
    whole = [padded, *fine, *(abs(convolved(padded, kernel)) for kernel in coarse)]
    whole += [abs(convolved(edges, kernel)) for edges in fine for kernel in coarse]
    return np.stack([convolved(each, blur(9)).real[4:-4:4, 4:-4:4] for each in whole])


def test_features_are_those_of_the_definition():
    (image,) = images(1)
    ours = _scatter(torch.from_numpy(image[np.newaxis]))[0].numpy()
    # Coarse edges are thinned out to every other pixel, which leaves 1 % of their size.
    np.testing.assert_allclose(ours, naive(image[0]), atol=3e-3)


def test_an_image_of_mnists_size_has_81_features_at_7_by_7_places():
    assert scattered(images(2, side=28)).shape == (2, CHANNELS, 7, 7) == (2, 81, 7, 7)


def test_features_of_a_record_depend_on_no_other():
    many = images(40)
    alone = np.concatenate([scattered(many[row : row + 1]) for row in range(40)])
    np.testing.assert_allclose(scattered(many), alone, atol=1e-5)


def test_every_record_is_normalised_by_itself():
    found = scattered(images(3)).reshape(3, 27, -1)
    np.testing.assert_allclose(found.mean(-1), 0, atol=1e-4)
    assert (found.std(-1) < 1.001).all()
    assert found.std(-1).max() > 0.99


def test_bytes_are_taken_as_0_to_1():
    as_bytes = np.random.default_rng(1).integers(0, 256, (2, 1, 12, 12)).astype(np.uint8)
    np.testing.assert_allclose(
        scattered(as_bytes), scattered(as_bytes.astype(np.float32) / 255), atol=1e-5
    )


@pytest.mark.parametrize("shape", [(2, 3, 12, 12), (2, 1, 13, 12), (2, 144)])
def test_images_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="cannot be scattered"):
        scattered(np.zeros(shape, dtype=np.float32))
