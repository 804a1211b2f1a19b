"""Our parts of the SuperLink, and the program that is made of both."""
