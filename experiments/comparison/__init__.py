"""The comparison that counts: what every mode and every analysis leaves of a model, at equal ε."""
