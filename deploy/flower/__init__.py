"""Flower's processes and what is submitted to them."""
