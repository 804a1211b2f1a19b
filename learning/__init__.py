"""Model, data, clipped gradient sums, noise and the update."""
