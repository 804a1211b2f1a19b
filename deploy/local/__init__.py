"""A whole federation on one machine."""
