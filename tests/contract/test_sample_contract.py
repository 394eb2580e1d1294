"""What every method that protects samples keeps to, beside what all methods keep to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import cloister as cl
from cloister.engine import Vectorised
from cloister.errors import BudgetExceeded, CloisterError
from cloister.privacy.ledger import Budget, Ledger
from cloister.round import run_round
from conftest import ENGINES
from contract.catalogue import CLIP, SAMPLES, fed_of
from contract.sample_audit import AUDITS, SIZES, audited, silent, upload

USUAL = {"clip": CLIP, "lr": 0.5, "batch": 2, "noise_multiplier": 1.3}
SPA = {**USUAL, "keep": 0.75}
FOLLOWING = {"clip": 0.5, "lr": 0.1, "batch": 2, "decay": 1.0, "floor": 1e-3, "query_noise": 1.0}
ADAP = {**FOLLOWING, "noise_multiplier": 1.3}

# Momentum, masks and steps of every kind; Adam in single steps, from whose state a gradient can be read.
AUDITED = {
    "pfl": cl.methods.pfl(**USUAL),
    "pfl lot": cl.methods.pfl(**USUAL, epochs=3, epoch="lot", momentum=0.0),
    "fed_spa": cl.methods.fed_spa(**SPA, steps=2),
    "fed_spa coordinate": cl.methods.fed_spa(**SPA, steps=1, clipping="coordinate"),
    "fed_spa quantile": cl.methods.fed_spa(**SPA, steps=1, bound="quantile", query_noise=1.0),
    "fed_spa as_published": cl.methods.fed_spa(**SPA, steps=3, mode="as_published"),
    "dp_fed": cl.methods.dp_fed(**USUAL, steps=1),
    "adap_dp_fl": cl.methods.adap_dp_fl(**ADAP, norm_bound=2.0),
    "adap_dp_fl as_written": cl.methods.adap_dp_fl(**ADAP, threshold="as_written"),
    "adap_dp_fl quantile": cl.methods.adap_dp_fl(**ADAP, threshold="quantile"),
}
