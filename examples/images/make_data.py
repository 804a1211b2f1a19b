"""Write colour images of four clinics into the folder data, with some to measure with."""

from pathlib import Path

import numpy as np

CLINICS = ("clinic-1", "clinic-2", "clinic-3", "clinic-4", "test")
IMAGES = 400
SIDE = 32
COLOURS = ((125, 85, 70), (165, 70, 65), (80, 65, 75))


def images(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return images of spots of three kinds on skin: round and brown, long and red, ragged."""
    row, column = np.mgrid[:SIDE, :SIDE] - SIDE / 2
    kinds = rng.integers(0, 3, IMAGES)
    made = np.empty((IMAGES, 3, SIDE, SIDE), np.uint8)
    for image, kind in zip(made, kinds, strict=True):
        angle = np.arctan2(row, column) + rng.uniform(0, 2 * np.pi)
        radius = np.hypot(row, column)
        size = rng.uniform(6, 10)
        round_, long, ragged = 1.0, 0.55 + 0.75 * np.abs(np.cos(angle)), np.sin(6 * angle)
        edge = size * (round_, long, 1 + 0.35 * np.sign(ragged))[kind]
        inside = (radius < edge)[None]
        skin = np.array([205, 165, 145])[:, None, None] + rng.normal(0, 12)
        spot = np.array(COLOURS[kind])[:, None, None] + rng.normal(0, 12)
        noise = rng.normal(0, 8, image.shape)
        image[:] = np.clip(np.where(inside, spot, skin) + noise, 0, 255)
    return made, kinds


def main() -> None:
    """Write one file per clinic."""
    folder = Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(13)
    for clinic in CLINICS:
        x, y = images(rng)
        np.savez_compressed(folder / f"{clinic}.npz", x=x, y=y)
    print(f"Wrote {len(CLINICS)} files into {folder}.")


if __name__ == "__main__":
    main()
