"""What a simulation can do and a federation cannot: refused with a sentence when the terms are read, by either side."""

from __future__ import annotations

from cloister.core import Cohort, Method
from cloister.deploy.halves.shares import is_secret_sum
from cloister.deploy.terms.terms import Terms
from cloister.errors import CloisterError
from cloister.privacy.unit import ProtectedUnit


def expect_calibrated(terms: Terms, method: Method, asks: bool) -> None:
    """Refuse what each node would have to know of the others' rows, where these are not declared."""
    if terms.federation.sizes is not None or method.unit is not ProtectedUnit.SAMPLE:
        return
    together = method.local.private is None and method.mechanism.noise_multiplier is None
    why = None
    if method.local.sample_l2 is not None:
        why = f"{method.name} with trust = sum divides by the samples that batches are expected to have"
    elif together:
        why = f"the noise of {method.name} is the same for all, and is what the node with the fewest rows needs"
    elif method.transform.weighting is not None:
        why = f"{method.name} weighs replies by them"
    elif asks:
        why = "a mean over all rows is asked for, and sums are divided by their number"
    if why is not None:
        raise CloisterError(
            f"Expected declared numbers of rows, since {why}, found none: add sizes = [...] to [federation], which "
            "makes them public, or choose another method."
        )


def expect_deployable(terms: Terms, method: Method, cohort: Cohort) -> None:
    """Refuse a (bound) method whose guarantee a federation could not keep."""
    _expect_secret_sum(terms, method, cohort)
    _expect_own_coins(terms, method, cohort)
    if terms.federation.threshold is not None and not (is_secret_sum(method) and method.mechanism.integer):
        raise CloisterError(
            f"Expected no threshold for {method.name}, whose replies are not summed under masks, found "
            f"{terms.federation.threshold}: leave it out."
        )


def _expect_secret_sum(terms: Terms, method: Method, cohort: Cohort) -> None:
    """Shares of noise protect a sum alone, so that single messages have to stay hidden, and masks are for whole
    numbers. Members see who else is asked, so that no price may count on a secret cohort."""
    if not is_secret_sum(method) or not method.mechanism.noise_multiplier:
        return
    if not method.mechanism.integer and not terms.test_mode:
        remedy = 'noise = "discrete"' if method.unit is ProtectedUnit.SAMPLE else "method = ddgauss, or noise = central"
        raise CloisterError(
            f"Expected whole numbers for {method.name}, whose clients share the noise, found real ones: masks cannot "
            f"hide these, and a server would see every message under a share of the noise alone, so use {remedy}."
        )
    if method.unit is ProtectedUnit.CLIENT and cohort.name != "full":
        raise CloisterError(
            f"Expected cohort = full for {method.name}, whose clients share the noise, found {cohort.name}: members of "
            "a cohort see who is in it, so that a secret draw may not be counted on."
        )
    fewest = terms.federation.fewest
    if fewest < 2:
        raise CloisterError(
            f"Expected min_replies of 2 at least for {method.name}, found {fewest}: a sum of one reply is that reply."
        )


def _expect_own_coins(terms: Terms, method: Method, cohort: Cohort) -> None:
    """Nodes can draw for themselves where everybody's draw is a coin of its own, and nobody's shares depend on it."""
    if terms.federation.participation == "server":
        return
    if cohort.name not in ("poisson", "full") or is_secret_sum(method) or method.average_over == "actual":
        raise CloisterError(
            f"Expected cohort = poisson, noise that nodes do not share and average_over = expected beside "
            f'participation = "node", found {cohort.name} and {method.name}: let the server draw.'
        )
