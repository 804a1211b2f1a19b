"""Many rounds: composition, calibration, and how tight the bound is."""
