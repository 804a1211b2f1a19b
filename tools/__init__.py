"""Benchmarks and maintainers' scripts; not part of the installed package."""
