"""Mechanisms: noise whose scale follows from the bound on one contribution."""

from cloister.mechanisms.correlated import banded, tree
from cloister.mechanisms.discrete import discrete_gaussian
from cloister.mechanisms.gaussian import gaussian, none

__all__ = ["banded", "discrete_gaussian", "gaussian", "none", "tree"]
