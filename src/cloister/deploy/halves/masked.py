"""How replies are summed under masks, where only their sum is private: the same settings on both sides."""

from __future__ import annotations

import torch
from torch import Tensor

from cloister.deploy.halves.prepared import Prepared
from cloister.deploy.halves.shares import is_secret_sum
from cloister.deploy.halves.steps import UPDATE, Step
from cloister.deploy.masking import MaskSettings, modulus_bits


def mask_settings(side: Prepared, step: Step) -> MaskSettings | None:
    """How the messages of a step are summed under masks; None where they are sent as they are."""
    method, federation = side.fed.method, side.terms.federation
    if step.what != UPDATE or not is_secret_sum(method) or not method.mechanism.integer:
        return None
    length = side.fed.sensitivity.length
    assert length is not None
    return MaskSettings(length, _bits(side), federation.threshold or 0, federation.fewest)


def _bits(side: Prepared) -> int:
    """Modulo what sums are taken: as the method has it, or so that the sum of all cannot wrap around."""
    method = side.fed.method
    trials = method.mechanism.settings.get("trials")
    if trials is None:
        assert method.transform.bits is not None
        return method.transform.bits
    rounded = side.fed.sensitivity.rounded
    assert rounded is not None
    return modulus_bits(rounded[0] // 2 + 1 + trials // 2, side.terms.clients)


def centered(total: Tensor, bits: int) -> Tensor:
    """A sum modulo 2^bits as the number nearest to zero that it stands for.

    >>> centered(torch.tensor([0, 7, 8, 15, -1]), 4)
    tensor([ 0,  7, -8, -1, -1])
    """
    if bits >= 64:
        return total.to(torch.int64)
    half = 1 << (bits - 1)
    return ((total.to(torch.int64) + half) & (2 * half - 1)) - half
