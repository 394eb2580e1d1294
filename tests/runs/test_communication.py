"""What clients send over a run: counted from what is sent, and as Fed-SPA's tables count it."""

from __future__ import annotations

import math

import pytest
import torch

import cloister as cl
from cloister.runs.communication import Communication, communication_of, mean_upload_bits
from cloister.runs.folder import RunFolder
from conftest import prepared, toy_task

TASK = toy_task(sizes=(6,) * 10)
MODEL = torch.nn.Linear(6, 3)  # 21 parameters, 84 bytes
STEPS = {"lr": 0.1, "batch_size": 3, "local_steps": 2, "noise_multiplier": 2.0}


def run(method, cohort=None, rounds=4, **more):
    return cl.run(
        method, TASK, rounds=rounds, cohort=cohort, delta=1e-3, model=MODEL, engine="loop", progress=False, **more
    )


def counted(bits: int, numbers: int) -> int:
    """Whole bytes that hold so many numbers."""
    return math.ceil(bits * numbers / 8)


def test_the_costs_of_the_tables_of_fed_spa():
    """As printed, in megabytes: Table 1 for 45 rounds, Table 2 for 100 (where its caption speaks of 200)."""
    for p, cost in ((0.05, 0.0197), (0.1, 0.0393), (0.4, 0.1572), (1.0, 0.3931)):
        assert round(mean_upload_bits(21_840, 45, 0.1, p) / 8e6, 4) == cost
    for p, cost in ((0.1, 2.15), (0.4, 8.60), (1.0, 21.50)):
        assert round(mean_upload_bits(537_610, 100, 0.1, p) / 8e6, 2) == cost
    # cpSGD: all agents in every round, and log2(m + b) bits for 32.
    assert round(mean_upload_bits(21_840, 45, 1.0, 0.4) / 8e6, 3) == 1.572


@pytest.mark.parametrize("keep", [0.05, 0.4, 1.0])
def test_a_run_of_fed_spa_costs_p_d_32_t_r(keep):
    """With cohorts of a fixed size, exactly: r T messages of k = p d numbers for each of n agents, on average."""
    found = run(cl.methods.fed_spa(keep_fraction=keep, **STEPS), cl.fixed_size(3)).communication
    k = max(1, math.floor(keep * 21 + 0.5))
    assert found == Communication(4 * k, 4 * 21, 3 * 4, 10)
    assert found.mean_bytes * 8 == pytest.approx(mean_upload_bits(21, rounds=4, participation=0.3, sent=k / 21))
    assert found.share == pytest.approx(k / 21)


def test_how_many_took_part_stays_secret_where_that_protects_them():
    """The size of a Poisson cohort is not released, so the expected number is counted; without noise nothing is."""
    local = {"lr": 0.1, "batch_size": 3, "local_steps": 2}
    for seed in range(3):
        found = run(cl.methods.dp_fedavg(clip_norm=1.0, noise_multiplier=2.0, **local), cl.poisson(0.5), seed=seed)
        assert found.communication.messages == 20
        found = run(cl.methods.fedavg(**local), cl.poisson(0.5), seed=seed)
        assert found.communication.messages == sum(line["cohort"] for line in found.history)


def test_only_those_who_replied_are_counted():
    found = run(cl.methods.dp_fed(**STEPS), cl.poisson(0.5), rounds=6)
    sizes = [line["cohort"] for line in found.history]
    assert len(set(sizes)) > 1
    assert found.communication.total_bytes == 84 * sum(sizes)
    assert found.communication.share == 1.0
    clients = cl.methods.dp_fed(**{**STEPS, "noise_multiplier": 1.0})
    stopped = run(clients, cl.full(), rounds=30, epsilon=4.0)  # who cannot pay sends nothing
    assert stopped.communication.messages == sum(line["cohort"] for line in stopped.history) < 300


@pytest.mark.parametrize(
    ("method", "size"),
    [
        (cl.methods.dp_fedavg(1.0, local_steps=1, noise_multiplier=1.0), 84),
        (cl.methods.fed_smp_rand_k(1.0, 0.4, local_steps=1, noise_multiplier=1.0), 4 * 8),
        (
            cl.methods.dp_fedsam_top_k(local_steps=1, noise_multiplier=1.0),
            84,
        ),  # what is kept is private: all is sent
        (cl.methods.ddgauss(1.0, local_steps=1, noise_multiplier=1.0), counted(16, 32)),  # padded to a power of two
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_share_of_other_methods_follows_from_what_leaves_a_client(method, size):
    found = run(method, cl.full(), rounds=2).communication
    assert (found.upload_bytes, found.dense_bytes, found.messages) == (size, 84, 20)
    assert found.share == size / 84


@pytest.mark.parametrize(("levels", "more"), [(17, 0), (16, 1)])
def test_cpsgd_sends_as_many_bits_as_levels_and_coins_need(levels, more):
    method = cl.methods.cpsgd(levels=levels, batch_size=3, rotate=False, noise_multiplier=20.0)
    ready = prepared(method, TASK, model=MODEL)
    coins = ready.fed.method.mechanism.settings["trials"]
    bits = math.ceil(math.log2(levels + coins + more))
    assert communication_of(ready.description, []).upload_bytes == counted(bits, 21)


def test_the_numbers_of_a_wider_type_are_wider_on_both_sides():
    found = run(cl.methods.fed_spa(keep_fraction=0.4, **STEPS), rounds=1, dtype="float64").communication
    assert (found.upload_bytes, found.dense_bytes) == (8 * 8, 8 * 21)


def test_the_folder_of_a_run_says_the_same_and_so_does_one_that_was_resumed(tmp_path, command):
    method = cl.methods.fed_spa(keep_fraction=0.4, **STEPS)
    found = run(method, cl.fixed_size(3), folder=tmp_path / "run").communication
    folder = RunFolder.open(tmp_path / "run")
    assert communication_of(folder.description(), folder.metrics()) == found
    assert run(method, cl.fixed_size(3), folder=tmp_path / "run", resume=True).communication == found
    shown = command("show", tmp_path / "run").stdout
    assert "upload: 32 bytes a client and round, 384 bytes in all (38.4 bytes a client on average), 38.1 %" in shown
