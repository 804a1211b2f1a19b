"""Commands for separate machines: keys, a server, its clients, and how they are."""
