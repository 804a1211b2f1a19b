"""The command line, the local cluster and everything that puts the parts on machines."""
