"""Sums of clipped per-record gradients."""
