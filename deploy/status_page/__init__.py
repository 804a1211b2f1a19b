"""The operator's page: what a server runs and who is there, to look at and nothing else."""
