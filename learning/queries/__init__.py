"""Queries: what is measured of each record in place of a gradient, and what the sums say."""
