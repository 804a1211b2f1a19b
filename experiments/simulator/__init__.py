"""Many clients in one process, without messages."""
