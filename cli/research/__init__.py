"""Commands for researchers: simulations, audits, the paper's figures and trainings."""
