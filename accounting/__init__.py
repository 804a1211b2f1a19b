"""What random participation costs: schemes, composition, calibration and the ledger."""
