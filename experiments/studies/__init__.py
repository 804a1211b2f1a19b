"""Studies of accuracy and their result pages."""
