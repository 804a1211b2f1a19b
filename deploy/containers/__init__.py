"""What containers run before they become a server or a client."""
