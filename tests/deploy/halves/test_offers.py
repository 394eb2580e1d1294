"""Nothing that a server puts into an offer makes a node release more than it is charged for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cloister.deploy.halves import OfferBody, Step
from cloister.errors import CloisterError
from deploy.halves.federations import FEDAVG, PFL, Toy, data_of, terms_of

CLIP: dict[str, Any] = {**FEDAVG, "method": "adaptive_clipping", "cohort": "full"}
CLIP.pop("sampling_rate")
PUBLIC = tuple(map(torch.from_numpy, data_of(99, 20)))
SMP = {**CLIP, "method": "fed_smp_top_k", "public_steps": 2, "public": {"sha256": "0" * 64}}
ADAPTIVE: dict[str, Any] = {
    "method": "adap_dp_fl",
    "clip_norm": 0.5,
    "lr": 0.1,
    "batch_size": 4,
    "noise_decay": 0.5,
    "epsilon": 200.0,
    "noise_multiplier": 1.3,
    "delta": 1e-3,
    "allow_large_delta": True,
    "public": {"sha256": "0" * 64},
}
CYCLIC = {**CLIP, "method": "dp_ftrl", "cohort": "cyclic", "clients_per_round": 2}
MASKED = {**CLIP, "method": "ddgauss"}
STANDARD = {**PFL, "standardize": 0.1, "epsilon": 20.0}


def opened(values: dict[str, Any], **federation: Any) -> tuple[Toy, OfferBody]:
    toy = Toy(terms_of(values, **federation), public=PUBLIC if "public" in values else None)
    step = toy.server.next_step()
    members = (0, 1, 2, 3) if values.get("cohort") != "cyclic" else toy.server.members(step)
    return toy, toy.server.offer(step, members)


def with_tensor(name: str, change: Any) -> Any:
    return lambda offer: replace(offer, tensors={**offer.tensors, name: change(offer.tensors.get(name))})


def with_content(**content: Any) -> Any:
    return lambda offer: replace(offer, content=content)


def spoiled(place: int, value: float) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed.view(-1)[place] = value
        return changed

    return change


CASES = {
    "a round after the last": (FEDAVG, lambda o: replace(o, step=Step(4)), "a step of these terms"),
    "round 0": (FEDAVG, lambda o: replace(o, step=Step(0)), "a step of these terms"),
    "a query that was not agreed": (PFL, lambda o: replace(o, step=Step(1, "statistics")), "a step of these terms"),
    "somebody else's offer": (PFL, lambda o: replace(o, asked=(1, 2)), "an offer to client 0"),
    "a node twice": (PFL, lambda o: replace(o, asked=(0, 0, 1)), "in rising order"),
    "more nodes than there are": (PFL, lambda o: replace(o, asked=(0, 1, 2, 3, 4)), "in rising order"),
    "NaN": (PFL, with_tensor("w", spoiled(0, float("nan"))), "finite"),
    "infinity": (PFL, with_tensor("w", spoiled(3, float("inf"))), "finite"),
    "another shape": (PFL, with_tensor("w", lambda w: w[:-1]), "a model of"),
    "another type": (PFL, with_tensor("w", lambda w: w.double()), "a model of"),
    "a sum among fewer than agreed": (MASKED, lambda o: replace(o, asked=(0, 1, 2)), "as the terms have it"),
    "no model": (PFL, lambda o: replace(o, tensors={}), "a model of"),
    "less noise": (PFL, with_content(noise_scale=0.5), "nothing beside"),
    "an unknown tensor": (PFL, with_tensor("more", lambda _: torch.zeros(1)), "what belongs to it"),
    "a clip for a method without": (PFL, with_tensor("told/clip_norm", lambda _: torch.ones(())), "beside the model"),
    "statistics for a method without": (PFL, with_tensor("released/scale", lambda _: torch.ones(6)), "by queries"),
    "no clip": (CLIP, lambda o: replace(o, tensors={"w": o.tensors["w"]}), "beside the model"),
    "a clip that is no number": (CLIP, with_tensor("told/clip_norm", spoiled(0, float("nan"))), "within a factor"),
    "a clip of infinity": (CLIP, with_tensor("told/clip_norm", spoiled(0, float("inf"))), "within a factor"),
    "a negative clip": (CLIP, with_tensor("told/clip_norm", spoiled(0, -1.0)), "within a factor"),
    "a coordinate several times": (SMP, with_tensor("told/0/mask", lambda m: m * 0), "different coordinates"),
    "coordinates beyond": (SMP, with_tensor("told/0/mask", lambda m: m + 1000), "different coordinates"),
    "another number of coordinates": (SMP, with_tensor("told/0/mask", lambda m: m[:-1]), "different coordinates"),
    "no noise": (ADAPTIVE, with_content(noise_scale=0.0), "a factor on the noise"),
    "negative noise": (ADAPTIVE, with_content(noise_scale=-1.0), "a factor on the noise"),
    "noise that is no number": (ADAPTIVE, with_content(noise_scale=float("nan")), "a factor on the noise"),
    "no factor": (ADAPTIVE, with_content(), "a factor on the noise"),
    "not its turn": (CYCLIC, lambda o: replace(o, step=Step(2), asked=(0, 1)), "own turn"),
    "a factor on a query": (STANDARD, with_content(noise_scale=0.1), "nothing beside"),
}


@pytest.mark.parametrize("name", CASES)
def test_an_offer_that_was_not_agreed_is_refused(name):
    values, change, says = CASES[name]
    toy, offer = opened(values, **({"sizes": [7, 3, 12, 5]} if values is STANDARD else {}))
    node = toy.nodes[0]
    node.expect_offer(offer)
    with pytest.raises(CloisterError, match=says):
        node.expect_offer(change(offer))
    with pytest.raises(CloisterError, match=says):
        node.answer(change(offer))


def test_less_noise_costs_more():
    toy, offer = opened(ADAPTIVE)
    node = toy.nodes[0]
    full, half = (node.charges(offer.step, replace(offer, content={"noise_scale": one})) for one in (1.0, 0.5))
    assert full.event.noise_multiplier == 2 * half.event.noise_multiplier
    assert full.count == half.count


@pytest.mark.parametrize("size", [1e20, -3e38])
def test_a_model_of_huge_numbers_releases_nothing_beyond_the_bound(size):
    toy, offer = opened({**CLIP, "method": "dp_fedavg"})
    node = toy.nodes[0]
    huge = with_tensor("w", lambda w: torch.full_like(w, size))(offer)
    message = node.answer(huge)[0].tensors["message"]
    assert bool(message.isfinite().all())
    assert float(message.norm()) <= node.side.fed.sensitivity.l2 * (1 + 1e-6)


def test_what_a_node_adds_does_not_depend_on_who_is_said_to_be_asked():
    values = {**CLIP, "method": "dp_fedavg", "noise": "distributed", "clip_norm": 1e-6}
    toy, offer = opened(values)
    one, other = (toy.nodes[0].answer(replace(offer, asked=asked))[0] for asked in [(0,), (0, 1, 2, 3)])
    assert torch.equal(one.tensors["message"], other.tensors["message"])
