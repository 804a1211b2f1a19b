"""What a model learns: the loss of each record, the targets that it needs, and its metrics."""
