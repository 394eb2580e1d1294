"""Mechanisms: noise whose scale follows from the bound on one contribution."""

from cloister.mechanisms.binomial import binomial
from cloister.mechanisms.correlated import banded, tree
from cloister.mechanisms.discrete_gaussian import discrete_gaussian
from cloister.mechanisms.gaussian import gaussian, in_steps, none
from cloister.mechanisms.sample_shares import sample_shares

__all__ = ["banded", "binomial", "discrete_gaussian", "gaussian", "in_steps", "none", "sample_shares", "tree"]
