"""The server on a machine of its own: start, watch, report its state."""
