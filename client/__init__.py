"""The client: its coin, its ledger, its gradient; thin glue to Flower."""
