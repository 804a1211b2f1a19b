"""Write the customers of four branches into the folder data, with some to measure with."""

from pathlib import Path

import numpy as np

HEADER = "income,age,household,product,spending"
BRANCHES = ("branch-1", "branch-2", "branch-3", "branch-4", "test")
PRODUCTS = {"basic": -300.0, "standard": 0.0, "premium": 700.0}
CUSTOMERS = 800


def customers(rng: np.random.Generator) -> list[str]:
    """Return one row per customer, with the spending of a month."""
    rows = []
    for _ in range(CUSTOMERS):
        income = float(np.clip(rng.lognormal(7.9, 0.45), 500, 20_000))
        age = int(rng.integers(18, 90))
        household = int(rng.integers(1, 7))
        product = str(rng.choice(list(PRODUCTS), p=[0.3, 0.5, 0.2]))
        spending = 0.45 * income + 140 * household + PRODUCTS[product] + rng.normal(0, 150)
        rows.append(f"{income:.0f},{age},{household},{product},{np.clip(spending, 0, 12_000):.0f}")
    return rows


def main() -> None:
    """Write one CSV file per branch."""
    folder = Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(11)
    for branch in BRANCHES:
        (folder / f"{branch}.csv").write_text("\n".join([HEADER, *customers(rng), ""]))
    print(f"Wrote {len(BRANCHES)} files into {folder}.")


if __name__ == "__main__":
    main()
