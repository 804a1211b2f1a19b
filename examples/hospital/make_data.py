"""Write the visits of four wards into the folder data, with some to measure with."""

from pathlib import Path

import numpy as np

HEADER = "patient,age,sex,admission,pressure,lactate,readmitted"
WARDS = ("ward-a", "ward-b", "ward-c", "ward-d", "test")
PATIENTS = 400


def visits(ward: str, rng: np.random.Generator) -> list[str]:
    """Return one row per visit; a patient has one to six."""
    rows = []
    for patient in range(PATIENTS):
        age = rng.integers(20, 95)
        sex = rng.choice(["female", "male"])
        frailty = rng.normal()
        for _ in range(rng.integers(1, 7)):
            admission = rng.choice(["planned", "emergency"], p=[0.6, 0.4])
            pressure = rng.normal(130 - 8 * frailty, 15)
            lactate = np.exp(rng.normal(0.4 + 0.4 * frailty, 0.3))
            risk = 0.05 * (age - 65) + 1.2 * frailty + 1.5 * (admission == "emergency") - 1.2
            readmitted = "yes" if rng.random() < 1 / (1 + np.exp(-2 * risk)) else "no"
            shown = "" if rng.random() < 0.1 else f"{lactate:.2f}"
            rows.append(
                f"{ward}-{patient},{age},{sex},{admission},{pressure:.0f},{shown},{readmitted}"
            )
    return rows


def main() -> None:
    """Write one CSV file per ward."""
    folder = Path(__file__).parent / "data"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(7)
    for ward in WARDS:
        (folder / f"{ward}.csv").write_text("\n".join([HEADER, *visits(ward, rng), ""]))
    print(f"Wrote {len(WARDS)} files into {folder}.")


if __name__ == "__main__":
    main()
