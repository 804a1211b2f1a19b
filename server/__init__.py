"""The parameter server as a Flower strategy."""
