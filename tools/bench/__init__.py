"""Benchmarks: a module each, and `table`, which runs them all."""
