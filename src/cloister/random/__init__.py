"""Randomness: streams and keys, and exact samplers that draw from them."""
