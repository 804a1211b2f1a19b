"""Models by name, and what is done with any model: its parameters as a vector, its weights."""
