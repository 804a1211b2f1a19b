"""Write the deliveries of four depots into the folder data, with some to measure with."""

from pathlib import Path

import numpy as np

HEADER = "distance,parcels,weather,minutes"
DEPOTS = ("depot-1", "depot-2", "depot-3", "depot-4", "test")
DELIVERIES = 800


def deliveries(rng: np.random.Generator) -> list[str]:
    """Return one row per delivery; bad weather makes some of them very late."""
    rows = []
    for _ in range(DELIVERIES):
        distance = rng.uniform(1, 40)
        parcels = int(rng.integers(1, 60))
        weather = str(rng.choice(["dry", "rain", "snow"], p=[0.6, 0.3, 0.1]))
        delay = rng.exponential({"dry": 5, "rain": 15, "snow": 40}[weather])
        minutes = 1.5 * distance + 2 * parcels + delay
        rows.append(f"{distance:.1f},{parcels},{weather},{min(minutes, 400):.0f}")
    return rows


def main() -> None:
    """Write one CSV file per depot."""
    folder = Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(19)
    for depot in DEPOTS:
        (folder / f"{depot}.csv").write_text("\n".join([HEADER, *deliveries(rng), ""]))
    print(f"Wrote {len(DEPOTS)} files into {folder}.")


if __name__ == "__main__":
    main()
