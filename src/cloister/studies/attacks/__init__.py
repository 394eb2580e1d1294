"""Attacks on runs of simulations, as pictures: what a client's message and a final model give away."""
