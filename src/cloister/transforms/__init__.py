"""Transforms of a client's update, each with the bound that it leaves on ANY client's contribution."""

from cloister.transforms.chains import chain
from cloister.transforms.clipping import adaptive_clip, clip_each_tensor, clip_l2, identity, within
from cloister.transforms.grid import on_a_grid
from cloister.transforms.levels import on_levels
from cloister.transforms.masks import active_part, public_mask, random_mask
from cloister.transforms.top_k import top_k_after_noise, top_k_of_sum
from cloister.transforms.votes import votes

__all__ = [
    "active_part",
    "adaptive_clip",
    "chain",
    "clip_each_tensor",
    "clip_l2",
    "identity",
    "on_a_grid",
    "on_levels",
    "public_mask",
    "random_mask",
    "top_k_after_noise",
    "top_k_of_sum",
    "votes",
    "within",
]
