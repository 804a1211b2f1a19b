"""What one round costs, by each analysis."""
