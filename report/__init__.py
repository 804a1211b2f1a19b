"""What a run, a ledger or a simulation says to people: pages, charts, sentences."""
