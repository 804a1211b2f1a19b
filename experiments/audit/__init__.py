"""Attacks on the real code that measure the privacy lost."""
