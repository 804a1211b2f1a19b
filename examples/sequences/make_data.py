"""Write event sequences of four sites into the folder data, with some to measure with."""

from pathlib import Path

import numpy as np

SITES = ("site-1", "site-2", "site-3", "site-4", "test")
SEQUENCES, LENGTH, EVENTS = 500, 16, 20


def sequences(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences of events, and whether event 3 is ever followed by event 7."""
    x = rng.integers(1, EVENTS, (SEQUENCES, LENGTH))
    y = rng.integers(0, 2, SEQUENCES)
    for row in np.flatnonzero(y):
        for at in rng.choice(LENGTH // 2, 2, replace=False) * 2:
            x[row, at : at + 2] = 3, 7
    x[y == 0] = np.where(x[y == 0] == 7, 8, x[y == 0])
    return x.astype(np.int64), y


def main() -> None:
    """Write one file per site."""
    folder = Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(17)
    for site in SITES:
        x, y = sequences(rng)
        np.savez_compressed(folder / f"{site}.npz", x=x, y=y)
    print(f"Wrote {len(SITES)} files into {folder}.")


if __name__ == "__main__":
    main()
