"""Audits: lower bounds on the epsilon that a method really spends, beside the upper bound that is certified."""

from cloister.auditing.audits import KINDS, Kind, audit
from cloister.auditing.found import Audit, LowerBound

__all__ = ["KINDS", "Audit", "Kind", "LowerBound", "audit"]
