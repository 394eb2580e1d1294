"""Every method as a run: within its budget, resumed to the same bits, and certified for what it is."""

from __future__ import annotations

import math

import pytest
import torch

import cloister as cl
from cloister import engine as engines
from cloister.core import MethodState
from cloister.errors import CloisterError
from cloister.methods import REGISTRY
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.events import DiscreteGaussianSum, FixedSizeGaussian, Gaussian, NoOp, PoissonGaussian
from cloister.runs import training
from cloister.runs.config import build
from cloister.runs.folder import RunFolder
from cloister.studies.execution import run_cells
from cloister.studies.planning import planned
from conftest import Killed, killed_in_round
from contract.catalogue import METHODS

TASK = cl.data.digits(clients=40, public_samples=60)
LOCAL = {"lr": 0.5, "batch_size": 8, "local_steps": 2}
OWN = {"pfl": {"local_epoch": "batch", "local_epochs": 2}, "adap_dp_fl": {"noise_decay": 0.9999}}
COHORTS = {"cyclic": cl.cyclic(14), "full": cl.full(), "poisson": cl.poisson(0.5)}


def made(name: str, **more):
    """As the contract has it, with noise that is calibrated."""
    return METHODS[name](**{"noise_multiplier": None, **OWN.get(name, {}), **more})


def go(method, **more):
    cohort = COHORTS[REGISTRY[method.name].defaults.get("cohort", "poisson")]
    settings = {"cohort": cohort, "epsilon": 6.0, "delta": 1e-3, "engine": "vectorized", **more}
    return cl.run(method, settings.pop("task", TASK), rounds=settings.pop("rounds", 5), progress=False, **settings)


def vector(run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def interrupted(monkeypatch, method, folder, at: int, **more) -> None:
    with killed_in_round(monkeypatch, at):
        go(method, folder=folder, checkpoint_every=2, **more)


# One of every kind of unit, noise and message; the others are in the contract, and here for `make test-all`.
_QUICK = ("dp_fedavg", "adaptive_clipping", "ddgauss", "dp_ftrl", "fed_spa", "adap_dp_fl", "cpsgd", "ae_dpfl")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in _QUICK else [pytest.mark.slow])
        for name, info in REGISTRY.items()
        if info.unit != "nobody"
    ],
)
def test_a_method_spends_its_budget_and_resumes_to_the_same_bits(name, tmp_path, monkeypatch):
    whole = go(made(name), folder=tmp_path / "whole")
    assert 5.9 < whole.epsilon <= 6.0
    assert whole.certificate.private
    interrupted(monkeypatch, made(name), tmp_path / "torn", at=4)
    resumed = go(made(name), folder=tmp_path / "torn", resume=True)
    assert torch.equal(vector(whole), vector(resumed))
    ledgers = [(tmp_path / run / "ledger.jsonl").read_bytes() for run in ("whole", "torn")]
    assert ledgers[0] == ledgers[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: cl.methods.dp_fedavg(clip_norm=1.0, local_steps=2, mode="Honest"),
        lambda: cl.methods.blur(clip_norm=1.0, local_steps=2, mode="published"),
        lambda: cl.methods.fed_smp_rand_k(clip_norm=1.0, local_steps=2, mode=""),
        lambda: cl.methods.lus(clip_norm=1.0, local_steps=2, ties="none"),
        lambda: cl.methods.dp_fedsam_top_k(local_steps=2, variant="B", ties=0),
        lambda: cl.methods.dp_fedsam_top_k(local_steps=2, keep_fraction="0.4"),
        lambda: cl.methods.fed_smp_top_k(clip_norm=1.0, local_steps=2, public_steps=0),
        lambda: cl.methods.fed_smp_top_k(clip_norm=1.0, local_steps=2, public_batch_size=-3),
        lambda: cl.methods.ae_dpfl(local_steps=2, student_momentum=7),
        lambda: cl.methods.adaptive_clipping(local_steps=2, count_noise=0.4),
        lambda: cl.methods.dp_ftrl(clip_norm=1.0, local_steps=2, factorization="tree", band=3),
        lambda: cl.methods.ddgauss(clip_norm=1.0, local_steps=2, bits=1),
        lambda: cl.methods.ddgauss(clip_norm=1.0, local_steps=2, bits=33),
        lambda: cl.methods.ddgauss(clip_norm=1.0, local_steps=2, bits="16"),
        lambda: cl.methods.adaptive_clipping(local_steps=2, quantile=1.0),
        lambda: cl.methods.adaptive_clipping(local_steps=2, quantile="0.5"),
        lambda: cl.methods.lus(clip_norm=1.0, local_steps=2, sparsity=1.0),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(make):
    with pytest.raises(CloisterError, match=r"^Expected .* found .*: .*\.$"):
        make()


def test_a_count_noise_is_a_multiple_of_whatever_noise_is_calibrated():
    run = go(made("adaptive_clipping", count_noise=0.6), epsilon=8.0, rounds=3)
    assert 7.9 < run.epsilon <= 8.0


def test_a_shared_server_is_for_the_methods_that_take_one(tmp_path):
    path = tmp_path / "methods.toml"
    path.write_text(
        FILE.replace("clip_norm = 0.5", "clip_norm = 0.5\nserver_lr = 0.5\npublic_samples = 60") + "[methods.ae_dpfl]\n"
    )
    values = {run.label: run.experiment.values for run in planned(path, [])}
    assert values["dp_fedavg"]["server_lr"] == 0.5
    assert "server_lr" not in values["ae_dpfl"]


def test_a_method_with_a_server_of_its_own_takes_no_other():
    keys = {
        "method": "ae_dpfl",
        "local_steps": 1,
        "rounds": 1,
        "public_samples": 60,
        "sampling_rate": 0.5,
        "clients": 40,
    }
    assert "server" not in build(keys).values
    with pytest.raises(CloisterError, match="server"):
        build({**keys, "server": "adam"})


def test_of_every_method_all_is_known():
    assert set(REGISTRY) == set(cl.methods.CATALOGUE)
    assert all(info.paper and info.year < 9999 and info.trust and info.proven for info in REGISTRY.values())


def test_methods_are_found_by_themselves_and_listed_by_year():
    years = [REGISTRY[name].year for name in cl.methods.CATALOGUE]
    assert years == sorted(years)
    assert set(cl.methods.CATALOGUE) < set(dir(cl.methods))
    for name, function in cl.methods.CATALOGUE.items():
        assert getattr(cl.methods, name) is function
    with pytest.raises(AttributeError, match=r'no method .dp_fedavgg.: perhaps you mean "dp_fedavg"'):
        _ = cl.methods.dp_fedavgg


def test_a_second_method_of_a_name_is_refused():
    def lus() -> cl.Method: ...

    lus.__module__ = "cloister.methods.again"
    with pytest.raises(CloisterError, match=r"found it in cloister.methods.blur_lus and cloister.methods.again"):
        cl.methods.register("Somebody, 2026", "nothing")(lus)


@pytest.mark.parametrize(("name", "key"), [("ae_dpfl", "lr_decay"), ("pfl", "steps"), ("fed_spa", "momentum")])
def test_methods_refuse_what_others_take(name, key):
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument .{key}.$"):
        made(name, **{key: 1})


def test_a_cycle_is_paid_for_when_it_begins(tmp_path):
    run = go(made("dp_ftrl"), rounds=8, folder=tmp_path / "r")
    entries = RunFolder.open(tmp_path / "r").ledger().entries
    paid = [isinstance(entry.event, Gaussian) for entry in entries]
    assert paid == [True, False, False, True, False, False, True, False]  # 40 clients, 14 at a time: three rounds
    assert run.certificate.releases_charged == 3
    assert run.certificate.rounds_charged == 8
    assert run.epsilon == pytest.approx(epsilon_of(Gaussian(run.certificate.noise_multiplier), 3, 1e-3), rel=1e-6)
    assert 5.9 < run.epsilon <= 6.0


def test_a_round_of_a_cycle_that_is_played_again_with_other_noise_is_paid_for(tmp_path, monkeypatch):
    """A checkpoint after round 2, killed in round 4: rounds 3 and 4 begin again, with noise that nobody saw before."""
    secure = {"secure_rng": True, "rounds": 8, "epsilon": None}
    interrupted(monkeypatch, made("dp_ftrl", noise_multiplier=2.0), tmp_path / "r", at=4, **secure)
    run = go(made("dp_ftrl", noise_multiplier=2.0), folder=tmp_path / "r", resume=True, **secure)
    story = [(e.round, type(e.event)) for e in RunFolder.open(tmp_path / "r").ledger().entries]
    assert story[:5] == [(1, Gaussian), (2, NoOp), (3, NoOp), (3, Gaussian), (4, Gaussian)]
    assert run.certificate.releases_charged == 4


def test_that_noise_was_renewed_is_remembered_before_anything_is_drawn(tmp_path, monkeypatch):
    """Resumed with other threads, a run draws new noise; killed at once, it must not go back to the old noise."""
    method = made("dp_fedavg", noise_multiplier=2.0)
    interrupted(monkeypatch, method, tmp_path / "r", at=4, epsilon=None)
    monkeypatch.setattr(engines, "same_bits", lambda *_: False)
    with monkeypatch.context() as patch:
        patch.setattr(training, "run_round", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            go(method, folder=tmp_path / "r", epsilon=None, resume=True)
    assert RunFolder.open(tmp_path / "r").load("cpu").engine["renewed"]


def test_a_finished_run_keeps_no_noise_that_could_be_subtracted(tmp_path):
    go(made("dp_ftrl", factorization="tree"), rounds=6, folder=tmp_path / "r")
    assert RunFolder.open(tmp_path / "r").load("cpu").state == MethodState()
    assert (tmp_path / "r" / "checkpoint.safetensors").stat().st_mode & 0o077 == 0


def test_a_price_that_is_infinite_is_no_privacy():
    run = go(cl.methods.ddgauss(clip_norm=0.5, bits=3, deviations=1.0, noise_multiplier=0.05, **LOCAL), epsilon=None)
    assert math.isinf(run.epsilon)
    assert not run.certificate.private


def test_dp_ftrl_refuses_clients_that_may_come_in_every_round():
    for cohort in (cl.poisson(0.5), cl.full(), cl.fixed_size(5), cl.cyclic(40)):
        with pytest.raises(CloisterError, match=r"take turns.*cyclic"):
            go(made("dp_ftrl"), cohort=cohort)


def test_as_published_shows_the_claim_beside_the_price():
    method = cl.methods.dp_fedsam(noise_multiplier=0.95, mode="as_published", **LOCAL)
    run = go(method, cohort=cl.fixed_size(10), epsilon=None, rounds=3)
    tensors = 2
    sound = epsilon_of(FixedSizeGaussian(0.95 / math.sqrt(tensors), 10, 40), 3, 1e-3)
    assert run.epsilon == pytest.approx(sound, rel=1e-6)
    claimed = epsilon_of(PoissonGaussian(0.95, 0.25), 3, 1e-3, "rdp")
    assert run.certificate.claimed["epsilon"] == pytest.approx(claimed, rel=1e-9)
    assert run.epsilon > 2 * claimed
    assert "the paper claims" in str(run.certificate)
    honestly = go(
        cl.methods.dp_fedsam(noise_multiplier=0.95, **LOCAL), cohort=cl.fixed_size(10), epsilon=None, rounds=3
    )
    assert honestly.certificate.claimed is None
    assert "the paper claims" not in str(honestly.certificate)


def test_variant_c_is_certified_for_single_messages_alone():
    method = cl.methods.dp_fedsam_top_k(clip_norm=0.5, variant="C", noise_multiplier=5.0, **LOCAL)
    run = go(method, cohort=cl.fixed_size(10), epsilon=None, rounds=3)
    assert run.epsilon == pytest.approx(epsilon_of(Gaussian(5.0 / (2 * math.sqrt(10))), 3, 1e-3), rel=1e-6)
    text = " ".join(str(run.certificate).split())
    assert "no central guarantee is proven" in text
    assert "by itself" in run.certificate.released
    with pytest.raises(CloisterError, match="fixed size"):
        go(method, epsilon=None)


def test_ddgauss_is_priced_as_a_sum_of_discrete_gaussians(tmp_path):
    run = go(made("ddgauss", noise_multiplier=1.5), epsilon=None, folder=tmp_path / "r")
    (event,) = {entry.event for entry in RunFolder.open(tmp_path / "r").ledger().entries}
    assert isinstance(event, DiscreteGaussianSum)
    assert (event.shares, event.dimension, event.sampling_rate) == (20, 1024, 0.5)
    gaussian = epsilon_of(PoissonGaussian(1.5, 0.5), 5, 1e-3, "rdp")
    assert gaussian < run.epsilon < 1.05 * gaussian
    assert "wraps around" in str(run.certificate)
    with pytest.raises(CloisterError, match="priced for Poisson"):
        go(made("ddgauss"), cohort=cl.fixed_size(10))


def test_the_bytes_of_an_upload_are_counted(tmp_path):
    sizes = {}
    for name in ("dp_fedavg", "fed_smp_rand_k", "fed_smp_top_k", "ddgauss", "adaptive_clipping", "ae_dpfl"):
        go(made(name), folder=tmp_path / name, rounds=1)
        sizes[name] = RunFolder.open(tmp_path / name).description().upload_bytes
    assert sizes == {
        "dp_fedavg": 4 * 650,
        "fed_smp_rand_k": 4 * 260,
        "fed_smp_top_k": 4 * 260,
        "ddgauss": 2 * 1024,
        "adaptive_clipping": 4 * 651,
        "ae_dpfl": 4 * 60 * 10,
    }


@pytest.mark.parametrize("name", ["fed_smp_top_k", "ae_dpfl"])
def test_what_needs_public_data_is_refused_without(name):
    with pytest.raises(CloisterError, match="public"):
        go(made(name), task=cl.data.digits(clients=40))


def test_public_samples_are_nobodys_and_not_for_testing():
    everybody = torch.cat([TASK.population.inputs, TASK.test_inputs]).flatten(1)
    pool = TASK.public_samples[0].flatten(1)
    same = (pool[:, None] == everybody[None]).all(2)
    assert len(pool) == 60
    plain = cl.data.digits(clients=40)
    twins = (pool[:, None] == torch.cat([plain.population.inputs, plain.test_inputs]).flatten(1)[None]).all(2)
    assert (same.sum(1) == twins.sum(1) - 1).all()  # each is gone once from where it was


FILE = """
epsilons = [8.0, 2.0]
[shared]
data = "digits"
clients = 40
local_steps = 2
clip_norm = 0.5
sampling_rate = 0.5
rounds = 2
delta = 1e-3
[methods.fedavg]
[methods.dp_fedavg]
[methods."by turns"]
method = "dp_ftrl"
cohort = "cyclic"
clients_per_round = 10
"""


def test_methods_are_compared_from_one_file_and_go_on_where_they_stopped(tmp_path):
    path = tmp_path / "methods.toml"
    path.write_text(FILE)
    runs = list(run_cells(planned(path, ["clients=30"]), tmp_path / "runs"))
    assert [run.folder for run, _ in runs] == [
        "fedavg",
        "dp_fedavg-epsilon-8",
        "dp_fedavg-epsilon-2",
        "by-turns-epsilon-8",
        "by-turns-epsilon-2",
    ]
    for run, folder in runs:
        epsilon = folder.certificate().epsilon
        assert epsilon <= run.epsilon if run.epsilon else math.isinf(epsilon)
        assert folder.description().task.clients == 30
    with pytest.raises(CloisterError, match="the settings with which"):
        list(run_cells(planned(path, ["clients=30", "rounds=3"]), tmp_path / "runs"))
    assert [run.epsilon for run in planned(path, ["epsilons=[1.0]", "clients_per_round=5"])] == [None, 1.0, 1.0]
    assert planned(path, ["clients_per_round=5"])[-1].experiment.values["clients_per_round"] == 5
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*.json*")}
    assert len(list(run_cells(planned(path, ["clients=30"]), tmp_path / "runs"))) == 5
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*.json*")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[shared]\nrounds = 3", "Expected epsilons, a table"),
        ("rounds = 3", "Expected a value for clip_norm"),
        ("rounds = 3\n" + FILE, "Expected one value for rounds"),
        ("epsilons = [1.0]\n[methods]\ndp_fedavg = 3\n", "Expected .dp_fedavg. to be a table"),
        (FILE + "sice = 3", "In .methods.by turns.: Expected a known key, found 'sice'"),
        (
            FILE.replace("rounds = 2", "rounds = 2\nrouns = 2"),
            "Expected keys that some method .* found 'rouns': perhaps you mean",
        ),
        (FILE.replace("clip_norm = 0.5", "epsilon = 3.0"), "Expected keys that all runs share, found 'epsilon'"),
        (FILE.replace("[8.0, 2.0]", "[2.0, 2.0]"), "different epsilons, found .2.0, 2.0."),
        (FILE.replace("by turns", "../by turns"), "a name of letters"),
        (
            "epsilons = []\n[methods.dp_fedavg]\nclip_norm = 1.0\nsampling_rate = 0.5\nlocal_steps = 1\nrounds = 1\n",
            "at least one run",
        ),
        (FILE.replace("dp_ftrl", "dp_ftlr"), "Expected method to be one of"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_runs(tmp_path, text, message):
    path = tmp_path / "methods.toml"
    path.write_text(text)
    with pytest.raises(CloisterError, match=message):
        planned(path, [])
