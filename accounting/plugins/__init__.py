"""The mechanism for dp-accounting and for Opacus."""
