"""The resident Flower node: identity, connection, polling."""
