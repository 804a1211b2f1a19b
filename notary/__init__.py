"""The notary: a second party that lets a server open sums over many clients, and nothing else."""
