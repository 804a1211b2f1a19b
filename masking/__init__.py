"""Masks that hide all of a sum but its total, and the tickets that let a notary take them off."""
