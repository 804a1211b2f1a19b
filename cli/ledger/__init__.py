"""Commands that create, show, stop, tidy and back up a data set's ledger; none charges it."""
