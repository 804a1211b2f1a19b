"""Public features of small images: a fixed scattering transform, the same for everybody.

It is computed from one record alone and learns nothing, so it costs no ε. A linear model on it
learns more under noise than a network does on pixels (Tramèr and Boneh 2021, arXiv 2011.11660).
Wavelets are those of Bruna and Mallat (2013, arXiv 1203.1513), as Kymatio makes them: Morlet, two
scales, eight angles. Low-pass filters are Gaussian, so they are applied as matrices.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from coinflower.accounting.errors import UserError
from coinflower.learning.data.records import to_tensor

SCALES, ANGLES = 2, 8
CHANNELS = 1 + SCALES * ANGLES + ANGLES * ANGLES
"""Features at each place: the blurred image, its edges at two scales, and edges of fine edges."""
_STEP = 2**SCALES
_GROUPS = 27
_WIDTH = 0.8  # of the finest wavelet, in pixels
_FREQUENCY = 3 * math.pi / 4
_IMAGES_AT_ONCE = 32  # so few stay in the processor's cache
_TINY = 1e-5


def scattered(images: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return N x 81 x height/4 x width/4 features of N x 1 x height x width images.

    Each record's features are normalised by itself, in groups of channels, as GroupNorm does.

    Args:
        images: Bytes (0 to 255), or floats as they are; height and width are multiples of 4.

    Raises:
        ValueError: The images are of another shape.
    """
    if images.ndim != 4 or images.shape[1] != 1 or any(side % _STEP for side in images.shape[2:]):
        raise UserError(
            f"images of shape {images.shape} cannot be scattered; give N x 1 x height x width, "
            f"height and width multiples of {_STEP}"
        )
    height, width = images.shape[2:]
    found = np.empty((len(images), CHANNELS, height // _STEP, width // _STEP), dtype=np.float32)
    for start in range(0, len(images), _IMAGES_AT_ONCE):
        part = slice(start, start + _IMAGES_AT_ONCE)
        features = _scatter(to_tensor(images[part]))
        found[part] = functional.group_norm(features, _GROUPS, eps=_TINY).numpy()
    return found


def _scatter(images: torch.Tensor) -> torch.Tensor:
    """Return the features of N x 1 x height x width images before they are normalised."""
    bank = _bank(*images.shape[2:])
    padded = functional.pad(images, (_STEP,) * 4, mode="reflect")
    spectrum = torch.fft.fft2(padded)
    fine = torch.fft.ifft2(spectrum * bank.fine).abs()
    coarse = _thinned(spectrum * bank.coarse).abs()
    both = _thinned(torch.fft.fft2(fine).unsqueeze(2) * bank.coarse).abs().flatten(1, 2)
    whole, half = torch.cat([padded, fine], 1), torch.cat([coarse, both], 1)
    rows, columns = bank.rows, bank.columns
    return torch.cat([rows @ whole @ columns.T, 4 * rows[:, ::2] @ half @ columns[:, ::2].T], 1)


def _thinned(spectra: torch.Tensor) -> torch.Tensor:
    """Return every other pixel of every other row of images, given their spectra."""
    *images, height, width = spectra.shape
    quarters = spectra.reshape(*images, 2, height // 2, 2, width // 2)
    thinned: torch.Tensor = torch.fft.ifft2(quarters.sum((-4, -2)) / 4)
    return thinned


@dataclass(frozen=True, kw_only=True, eq=False)
class _Bank:
    """Filters for padded images of one size.

    Attributes:
        fine: The spectra of the fine wavelets, by angle.
        coarse: Those of the coarse ones.
        rows: Blurs and thins out what lies above each other, and leaves out the padding.
        columns: The same for what lies beside each other.
    """

    fine: torch.Tensor
    coarse: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor


@functools.lru_cache(maxsize=4)
def _bank(height: int, width: int) -> _Bank:
    shape = (height + 2 * _STEP, width + 2 * _STEP)
    fine, coarse = (
        torch.from_numpy(np.stack([_morlet(shape, scale, angle) for angle in range(ANGLES)]))
        for scale in range(SCALES)
    )
    return _Bank(fine=fine, coarse=coarse, rows=_low_pass(height), columns=_low_pass(width))


def _morlet(shape: tuple[int, int], scale: int, angle: int) -> NDArray[np.complex64]:
    """Return the spectrum of a wavelet: a wave under a slanted bell, its mean taken away."""
    width, turned = _WIDTH * 2**scale, (ANGLES // 2 - 1 - angle) * math.pi / ANGLES
    frequency, slant = _FREQUENCY / 2**scale, 4 / ANGLES
    bell, wave = (_wrapped_gabor(shape, width, turned, f, slant) for f in (0.0, frequency))
    wavelet = wave - wave.sum() / bell.sum() * bell
    return np.fft.fft2(wavelet).astype(np.complex64)


def _wrapped_gabor(
    shape: tuple[int, int], width: float, turned: float, frequency: float, slant: float
) -> NDArray[np.complex128]:
    """Return a wave under a bell around the first pixel of an image without edges."""
    total = np.zeros(shape, dtype=np.complex128)
    cos, sin = math.cos(turned), math.sin(turned)
    for up in range(-2, 3):
        for left in range(-2, 3):
            y, x = np.mgrid[: shape[0], : shape[1]]
            y, x = y + up * shape[0], x + left * shape[1]
            along, across = y * cos + x * sin, x * cos - y * sin
            bell = (along**2 + (slant * across) ** 2) / (2 * width**2)
            total += np.exp(-bell + 1j * frequency * along)
    return total * slant / (2 * math.pi * width**2)


def _low_pass(side: int) -> torch.Tensor:
    """Return the matrix of a Gaussian blur of a padded line at every fourth of its own pixels."""
    padded, width = side + 2 * _STEP, _WIDTH * 2 ** (SCALES - 1)
    at = np.arange(padded)
    away = at - (_STEP + np.arange(0, side, _STEP))[:, np.newaxis]
    bells = sum(
        np.exp(-((away + turn * padded) ** 2) / (2 * width**2)) for turn in range(-2, 3)
    ) / (math.sqrt(2 * math.pi) * width)
    return torch.from_numpy(np.asarray(bells, dtype=np.float32))
