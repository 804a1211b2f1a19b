"""A training planned from what a person knows and wishes."""
