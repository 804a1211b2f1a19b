"""The data owner's page: what the ledger says, and two buttons that stop the client."""
