"""Mechanisms: noise whose scale follows from the bound on one contribution."""

from cloister.mechanisms.binomial import binomial
from cloister.mechanisms.correlated import banded, tree
from cloister.mechanisms.discrete_gaussian import discrete_gaussian
from cloister.mechanisms.gaussian import gaussian, in_steps, none

__all__ = ["banded", "binomial", "discrete_gaussian", "gaussian", "in_steps", "none", "tree"]
