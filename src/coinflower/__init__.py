"""Federated DP-SGD with random participation, and what it really costs.

The folders of this package lie at the top of the repository; here are links to them.
"""
