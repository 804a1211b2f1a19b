"""The command `coinflower plan`."""
