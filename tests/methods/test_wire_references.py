"""What happens between the clip and the model, against plain loops: masks, noise, grids, and clips that move."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from references import (
    CLASSES,
    CLIENTS,
    EMPTY,
    FLAT,
    SINGLE,
    SIZES,
    D,
    Named,
    asam,
    batches_of,
    check_messages,
    check_rounds,
    clipped,
    close,
    engines,
    federated,
    flat,
    largest_of_all,
    members,
    named,
    normal,
    only_largest,
    plain,
    public_batches,
    summed,
    trained,
)
from scipy.linalg import hadamard
from torch import Tensor

import cloister as cl
from cloister.errors import CloisterError
from cloister.privacy.ledger import Ledger
from cloister.round import cohort_total, run_round
from cloister.round.answer import noise_share
from cloister.round.bind import Federation

CLIP, LR, Z = 0.3, 0.4, 0.8
RULE = {"lr": LR, "batch_size": 4, "local_steps": 4, "momentum": 0.5, "weight_decay": 0.01}
TWO_FIFTHS = Fraction(2, 5)


def update_of(fed: Federation, round: int, client: int, start: Named) -> Tensor:
    """By SGD with RULE."""
    w = trained(start, batches_of(fed, round, client), plain, LR, 0.5, 0.01)
    return flat(w) - flat(start)


def clipped_update(fed: Federation, round: int, client: int, start: Named) -> Tensor:
    return clipped(update_of(fed, round, client, start), CLIP)


def sam_update(fed: Federation, round: int, client: int, start: Named) -> Tensor:
    w = trained(start, batches_of(fed, round, client), asam(0.5), LR * 0.998 ** (round - 1), 0.5, 0.01)
    return clipped(flat(w) - flat(start), CLIP)


# ---- DP-FedSAM-top_k, where the noise comes first ---------------------------------------------------------------


def sparse(vector: Tensor, ties: str, scope: str = "layer") -> Tensor:
    select = only_largest if scope == "layer" else largest_of_all
    return flat(select(named(vector), named(vector), TWO_FIFTHS, ties))


SCOPES = pytest.mark.parametrize("scope", ["layer", "model"])


@SCOPES
@pytest.mark.parametrize("ties", ["keep", "first"])
def test_variant_b_keeps_the_largest_of_the_noisy_sum(ties, scope):
    made = cl.methods.dp_fedsam_top_k(clip_norm=CLIP, variant="B", ties=ties, scope=scope, noise_multiplier=Z, **RULE)
    fed, w, _ = federated(made, cl.poisson(0.7))
    check_messages(fed, w, sam_update)

    def step(round: int, w: Tensor) -> Tensor:
        noisy = summed(fed, sam_update, round, w) + Z * CLIP * normal(fed, round)
        return w + sparse(noisy, ties, scope) / (0.7 * 8)

    check_rounds(fed, w, step)


@SCOPES
@pytest.mark.parametrize("ties", ["keep", "first"])
def test_variant_c_keeps_the_largest_of_every_noisy_update(ties, scope):
    made = cl.methods.dp_fedsam_top_k(clip_norm=CLIP, variant="C", ties=ties, scope=scope, noise_multiplier=Z, **RULE)
    fed, w, _ = federated(made, cl.fixed_size(5))

    def step(round: int, w: Tensor) -> Tensor:
        total = torch.zeros_like(w)
        for client in members(fed, round):  # who has no data sends noise, like the others
            update = sam_update(fed, round, client, named(w)) if SIZES[client] else 0
            total += sparse(update + Z * CLIP / math.sqrt(5) * normal(fed, round, client), ties, scope)
        return w + total / 5

    check_rounds(fed, w, step)


@pytest.mark.parametrize("variant", ["B", "C"])
def test_ties_without_noise(variant):
    """All start at zero: of a flat client's update the layers' zeros tie, and weight decay's equal steps do."""
    for ties in ("keep", "first"):
        made = cl.methods.dp_fedsam_top_k(clip_norm=CLIP, variant=variant, ties=ties, noise_multiplier=0.0, **RULE)
        fed, w, _ = federated(made)
        only = torch.tensor([FLAT])
        for engine in engines():
            total, _ = cohort_total(fed, engine, 1, w, only)
            if fed.method.transform.decode is not None:
                total, _ = fed.method.transform.decode(total, fed.context(w, {}), {})
            close(total, sparse(sam_update(fed, 1, FLAT, named(w)), ties))
            assert int((total != 0).sum()) > 20 if ties == "keep" else int((total != 0).sum()) == 2 + 12 + 6


def test_as_published_the_noise_is_scaled_to_one_tensors_clip():
    made = cl.methods.dp_fedavg(CLIP, noise_multiplier=Z, noise="distributed", mode="as_published", **RULE)
    fed, w, _ = federated(made)

    def message(fed: Federation, round: int, client: int, start: Named) -> Tensor:
        update = named(update_of(fed, round, client, start))
        return flat({n: clipped(u.flatten(), CLIP) for n, u in update.items()})

    def step(round: int, w: Tensor) -> Tensor:
        shares = [Z * CLIP / math.sqrt(8) * normal(fed, round, client) for client in CLIENTS]
        return w + (summed(fed, message, round, w) + torch.stack(shares).sum(0)) / 8

    check_rounds(fed, w, step)
    assert fed.sensitivity.l2 == pytest.approx(CLIP * math.sqrt(3))


# ---- Fed-SMP ----------------------------------------------------------------------------------------------------


def mask_of(fed: Federation, round: int, w: Tensor) -> Tensor:
    return fed.broadcast(round, w, {})["0"]["mask"]


def test_random_masks_are_shared_scaled_before_the_clip_and_noised_where_they_are():
    fed, w, _ = federated(
        cl.methods.fed_smp_rand_k(CLIP, keep_fraction=0.41, noise_multiplier=Z, **RULE), cl.poisson(0.7)
    )
    k = 20  # int(0.41 * 50)
    masks = [mask_of(fed, round, w) for round in (1, 2, 3)]
    assert all(len(mask) == len(set(mask.tolist())) == k for mask in masks)
    assert not torch.equal(masks[0], masks[1])

    def message(fed: Federation, round: int, client: int, start: Named) -> Tensor:
        return clipped(update_of(fed, round, client, start)[masks[round - 1]] * D / k, CLIP)

    def step(round: int, w: Tensor) -> Tensor:
        released = summed(fed, message, round, w) + Z * CLIP * normal(fed, round, size=k)
        new = w.clone()
        new[masks[round - 1]] += released / (0.7 * 8)
        return new

    check_messages(fed, w, message)
    check_rounds(fed, w, step)


def public_samples(count: int = 30) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(5)
    labels = random.integers(0, CLASSES, count)
    return torch.tensor(random.normal(size=(count, 6)) + labels[:, None]), torch.tensor(labels)


@SCOPES
def test_public_masks_are_the_largest_changes_of_training_on_public_data(scope):
    public = public_samples()
    rule = {"public_lr": 0.2, "public_steps": 7, "public_batch_size": 8}
    made = cl.methods.fed_smp_top_k(CLIP, keep_fraction=0.41, scope=scope, noise_multiplier=Z, **rule, **RULE)
    fed, w, _ = federated(made, cl.poisson(0.7), public)

    def mask(round: int, start: Named) -> list[int]:
        batches = public_batches(public, fed.streams.key("public", round), 7, 8)
        assert [len(labels) for _, labels in batches] == [8, 8, 8, 6, 8, 8, 8]
        change = (flat(trained(start, batches, plain, 0.2)) - flat(start)).abs().tolist()
        # Of layers with 5, 30 and 15 numbers, 2, 12 and 6 of 0.41 (rounded down), and so 20 of 50 in both scopes.
        ends = [D] if scope == "model" else [5, 35, 50]
        layers = [range(first, end) for first, end in zip([0, *ends], ends, strict=False)]
        kept = [sorted(layer, key=lambda e: -change[e])[: math.floor(0.41 * len(layer))] for layer in layers]
        return sorted(e for layer in kept for e in layer)

    def message(fed: Federation, round: int, client: int, start: Named) -> Tensor:
        return clipped(update_of(fed, round, client, start)[mask(round, start)], CLIP)

    def step(round: int, w: Tensor) -> Tensor:
        new = w.clone()
        released = summed(fed, message, round, w) + Z * CLIP * normal(fed, round, size=20)
        new[mask(round, named(w))] += released / (0.7 * 8)
        return new

    assert mask_of(fed, 1, w).tolist() == mask(1, named(w))
    check_messages(fed, w, message)
    check_rounds(fed, w, step)


def test_noise_on_the_kept_coordinates_alone_is_refused_by_name():
    """Paper 001, section 2: "no noise needs to be added to the sparse weight positions"."""
    for make in (cl.methods.dp_fedsam_top_k, cl.methods.lus, cl.methods.blur_lus):
        make(clip_norm=CLIP, noise_on="all", **RULE)
        with pytest.raises(CloisterError, match=r"Expected noise_on = all, found 'kept': .*support leaks.*no finite"):
            make(clip_norm=CLIP, noise_on="kept", **RULE)
        with pytest.raises(CloisterError, match="noise_on to be one of all, kept"):
            make(clip_norm=CLIP, noise_on="some", **RULE)


def test_noise_on_the_kept_coordinates_alone_would_tell_neighbors_apart_for_certain():
    """Whatever the noise: a zero at a place that only one of two neighbors keeps is seen under the other only."""
    random = torch.Generator().manual_seed(0)
    first, second = torch.tensor([3.0, 1.0, 0.2]), torch.tensor([0.2, 1.0, 3.0])
    for update, other in ((first, second), (second, first)):
        kept, kept_by_other = (set(u.topk(1).indices.tolist()) for u in (update, other))
        for _ in range(50):
            released = torch.zeros(3)
            for place in kept:
                released[place] = update[place] + 1e6 * torch.randn((), generator=random)
            support = set(released.nonzero().flatten().tolist())
            assert support == kept != kept_by_other


def test_public_masks_are_refused_without_public_data():
    with pytest.raises(CloisterError, match="variant A"):
        federated(cl.methods.fed_smp_top_k(CLIP, noise_multiplier=Z, **RULE))


# ---- DDGauss ----------------------------------------------------------------------------------------------------

WIDE = 64  # the power of two above D
ROTATION = torch.from_numpy(hadamard(WIDE).astype(float)) / 8


def grid_of(z: float, bits: int, shares: int, deviations: float = 4.0) -> float:
    """1/gamma, by bisection of 2^b gamma = 2k sqrt(c^2 n^2 / d + (gamma^2/4 + sigma^2) n), sigma = z c / sqrt(n)."""
    low, high = 1e-9, 10.0
    for _ in range(200):
        gamma = (low + high) / 2
        spread = CLIP**2 * shares**2 / WIDE + (gamma**2 / 4 + (z * CLIP) ** 2 / shares) * shares
        low, high = (gamma, high) if 2**bits * gamma < 2 * deviations * math.sqrt(spread) else (low, gamma)
    return 1 / low


def rotated(fed: Federation, round: int, vector: Tensor) -> Tensor:
    signs = fed.broadcast(round, torch.zeros(D).double(), {})["1"]["signs"]
    assert set(signs.tolist()) == {-1.0, 1.0}
    return ROTATION @ (signs * torch.cat([vector, torch.zeros(WIDE - D).double()]))


def turned_back(fed: Federation, round: int, total: Tensor, scale: float, bits: int) -> Tensor:
    signs = fed.broadcast(round, torch.zeros(D).double(), {})["1"]["signs"]
    wrapped = torch.tensor([(int(t) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for t in total]).double()
    return ((ROTATION.T @ wrapped) / scale * signs)[:D]


def test_ddgauss_without_noise_is_fedavg_with_a_clip_up_to_the_grid():
    """A client's rounding moves each of 64 coordinates by less than 1/scale: n sqrt(64) / scale for the sum of n."""
    fed, w, _ = federated(cl.methods.ddgauss(CLIP, noise_multiplier=0.0, **RULE))
    scale = grid_of(1e-3, 16, 8)
    for engine in engines():
        for round in (1, 2):
            found = run_round(fed, Ledger.create(None, "test", {}), engine, round, w, fed.method.init(w)).w
            error = (found - w) * 8 - summed(fed, clipped_update, round, w)
            assert 0 < float(error.norm()) < 7 * math.sqrt(WIDE) / scale


def test_ddgauss_messages_are_the_rotated_update_rounded_to_neighbors_within_the_bound():
    for z, bits in ((0.0, 16), (1.0, 16), (1.0, 6)):
        fed, w, _ = federated(cl.methods.ddgauss(CLIP, bits=bits, noise_multiplier=z, noise="central", **RULE))
        scale = grid_of(z or 1e-3, bits, 8)
        c, likely = scale * CLIP, math.sqrt(2 * 0.5)
        sensitivity = min(c + 8, math.sqrt(c**2 + WIDE / 4 + likely * (c + 8 / 2)))
        assert fed.sensitivity.l2 == pytest.approx(sensitivity, rel=1e-9)
        for engine in engines():
            for client in (0, SINGLE, EMPTY, FLAT):
                message, _ = cohort_total(fed, engine, 1, w, torch.tensor([client]))
                assert message.dtype == torch.int64
                assert message.shape == (WIDE,)
                assert float(message.double().norm()) <= sensitivity
                exact = rotated(fed, 1, clipped_update(fed, 1, client, named(w)) if SIZES[client] else 0 * w) * scale
                assert ((message - exact).abs() < 1 + 1e-9).all()
                assert client != EMPTY or not message.any()


@pytest.mark.parametrize(("bits", "noise"), [(16, "distributed"), (5, "distributed"), (5, "central")])
def test_ddgauss_releases_the_modular_sum_of_messages_and_noise(bits, noise):
    """Poisson cohorts of 5.6 on average are priced at 6 shares: the server adds what is missing, and nobody a 7th."""
    made = cl.methods.ddgauss(CLIP, bits=bits, noise_multiplier=1.0, noise=noise, deviations=1.5, **RULE)
    fed, w, _ = federated(made, cl.poisson(0.7))
    scale, sizes, wraps, like = grid_of(1.0, bits, 6, 1.5), set(), 0, torch.zeros(WIDE, dtype=torch.int64)
    assert fed.method.mechanism.settings["scale"] == pytest.approx(
        scale * CLIP * (1 / math.sqrt(6) if noise == "distributed" else 1)
    )

    def share(round: int, name: int) -> Tensor:
        return noise_share(fed, like, round, name, 1)

    for engine in engines():
        for round in (1, 2, 3):
            there, total = members(fed, round), like.clone()
            sizes.add(len(there))
            for client in there:  # by itself, a client carries its share
                alone = cohort_total(fed, engine, round, w, torch.tensor([client]))[0]
                total += alone - share(round, client) if noise == "distributed" else alone
            names = there[:6] + [-1 - n for n in range(6 - len(there))] if noise == "distributed" else [-1]
            total += torch.stack([share(round, name) for name in names]).sum(0)
            wraps += int((total.abs() > 2 ** (bits - 1)).sum())
            found = run_round(fed, Ledger.create(None, "test", {}), engine, round, w, fed.method.init(w)).w
            close(found - w, turned_back(fed, round, total, scale, bits) / (0.7 * 8))
    assert min(sizes) < 6 < max(sizes)
    assert wraps > 0


# ---- adaptive clipping ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("z", "on_count"), [(0.3, 0.4), (0.05, None), (0.0, 0.5)])
def test_the_clip_follows_the_quantile_and_shares_the_noise(z, on_count):
    """Releases u within S under noise z_u S, and b - 1/2 under noise s_b; z_u^-2 + (2 s_b)^-2 = z^-2."""
    made = cl.methods.adaptive_clipping(CLIP, 0.6, 0.5, on_count and on_count / (z or 0.5), noise_multiplier=z, **RULE)
    fed, w, _ = federated(made)
    s_b = 0.0 if not z else on_count or max(8 / 20, 2 * z)
    z_u = (z**-2 - (2 * s_b) ** -2) ** -0.5 if z else 0.0
    for engine in engines():
        mine, clip_norm, clips = w, CLIP, []
        found, state, ledger = w, fed.method.init(w), Ledger.create(None, "test", {})
        for round in (1, 2, 3, 4):
            total, count, draws = torch.zeros(D).double(), 0.0, normal(fed, round, size=D + 1)
            for client in CLIENTS:
                if SIZES[client]:
                    update = update_of(fed, round, client, named(mine))
                    total += clipped(update, clip_norm)
                    count += 0.5 if float(update.norm()) <= clip_norm else -0.5
            mine = mine + (total + z_u * clip_norm * draws[:D]) / 8
            share = (count + s_b * float(draws[D])) / 8 + 0.5
            assert 0 < share < 1, "beyond, the library cuts it off"
            clips.append(clip_norm)
            clip_norm *= math.exp(-0.5 * (share - 0.6))
            found, state, *_ = run_round(fed, ledger, engine, round, found, state)
            close(found, mine)
            assert float(state.transform["clip_norm"]) == pytest.approx(clip_norm, rel=1e-10)
        assert len(set(clips)) == 4
