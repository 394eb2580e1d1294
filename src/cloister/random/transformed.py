"""Whether code runs as it stands, or is mapped over clients, compiled or traced."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor


def is_transformed(tensor: Tensor) -> bool:
    """Whether more is done with a tensor than to compute: it is mapped, compiled or traced."""
    return type(tensor) is not Tensor or is_functorch_wrapped_tensor(tensor) or torch.compiler.is_compiling()
