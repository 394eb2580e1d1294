"""Transforms of a client's update, each with the bound that it leaves on ANY client's contribution."""

from cloister.transforms.chain import chain
from cloister.transforms.clipping import (
    adaptive_clip,
    clip_each_tensor,
    clip_l2,
    clip_to_norm,
    identity,
    normalize_l2,
)
from cloister.transforms.grid import to_grid
from cloister.transforms.levels import quantize_to_levels
from cloister.transforms.masks import active_part, common_part, public_mask, random_mask
from cloister.transforms.quantization import quantize
from cloister.transforms.top_k import top_k_after_noise, top_k_of_sum
from cloister.transforms.votes import votes
from cloister.transforms.weights import capped_weights, size_weights

__all__ = [
    "active_part",
    "adaptive_clip",
    "capped_weights",
    "chain",
    "clip_each_tensor",
    "clip_l2",
    "clip_to_norm",
    "common_part",
    "identity",
    "normalize_l2",
    "public_mask",
    "quantize",
    "quantize_to_levels",
    "random_mask",
    "size_weights",
    "to_grid",
    "top_k_after_noise",
    "top_k_of_sum",
    "votes",
]
