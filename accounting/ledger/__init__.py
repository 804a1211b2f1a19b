"""The durable record of what a data set has spent."""
