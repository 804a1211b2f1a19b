"""The command `coinflower`, one module for each group of commands."""
