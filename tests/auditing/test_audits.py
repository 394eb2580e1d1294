"""Audits of every method: below the certificate where the code is right, above it where a bug was planted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from scipy import stats

import cloister as cl
from auditing.bugs import BUGS, LOCAL, less_noise
from cloister.auditing import audits, canary_clients
from cloister.auditing.audits import audit
from cloister.auditing.found import Audit, load, save
from cloister.auditing.likelihood import Seen, fitted
from cloister.auditing.worst_case import Terms, audited
from cloister.errors import CloisterError
from cloister.runs.request import Options
from contract.catalogue import ENTRIES, SAMPLES, cohorts_for

TRIALS = 3000


def of_entry(name: str, trials: int = TRIALS) -> Audit:
    entry, (kind, cohort) = ENTRIES[name], next(iter(cohorts_for(name).items()))
    method = entry.make(**{key: value for key, value in entry.settings.items() if key != "noise_multiplier"})
    epsilon = None if method.mechanism.place == "nowhere" else 4.0
    rounds = 4 if kind == "cyclic" else 3
    return audit(method, rounds=rounds, cohort=cohort, epsilon=epsilon, clients=10, sizes=20, trials=trials)


QUICK = {"dp_fedavg", "dp_ftrl", "ae_dpfl", "cpsgd"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ENTRIES]
)
@pytest.mark.filterwarnings("ignore::cloister.errors.Note")
def test_every_method_is_audited_and_none_is_exposed(name):
    found = of_entry(name, 1500 if name in QUICK else TRIALS)
    assert not found.exposed, found.verdict
    assert found.unit == ("sample" if name in SAMPLES else "client")
    if found.certified < float("inf"):
        assert 0 < found.certified <= 4.001
        assert found.lower <= found.certified or found.confirmation is not None
    if name.startswith(("dp_fedavg", "dp_ftrl", "blur", "dp_fedsam ", "pfl", "ddgauss", "ae_dpfl")):
        assert found.lower > 0.4 * found.certified, "the canary is found where it can be"


def test_without_noise_everything_is_spent():
    found = of_entry("fedavg", 2000)
    assert found.certified == float("inf")
    assert found.lower > 4
    assert "nothing is certified" in found.verdict
    assert found.to_json()["certified"] is None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name.startswith(("dp_fedavg:", "dp_ftrl", "cpsgd")) else pytest.mark.slow)
        for name in BUGS
    ],
)
def test_planted_bugs_are_exposed(name, monkeypatch):
    bug = BUGS[name]
    with monkeypatch.context() as patch:
        bug.plant(patch)
        method = bug.make()
        found = audit(
            method, rounds=bug.rounds, cohort=bug.cohort, epsilon=4.0, clients=10, sizes=20, trials=bug.trials
        )
    assert found.certified == pytest.approx(4.0, abs=0.01)
    assert found.exposed, found.verdict
    assert found.verdict.startswith("EXPOSED")
    assert found.confirmation.confidence == audits.SURE


def test_ten_methods_have_bugs():
    assert len({name.split()[0].rstrip(":") for name in BUGS}) >= 10


def test_what_is_seen_is_signal_and_noise_of_the_priced_scale():
    """One release: 0 or 1 plus N(0, z^2), by the real round; and over rounds as independent."""
    terms = Terms(cl.methods.dp_fedavg(**LOCAL), cl.full(), 3, 4.0, 1e-5, (1,) * 5, Options(dtype="float64"))
    ready = audited(terms, 0)
    world = torch.arange(4000) % 2 == 1
    seen = canary_clients.play(ready.fed, ready.w, 3, world, False)
    noise = (seen.shown - world.double()) / ready.fed.method.mechanism.noise_multiplier
    assert seen.clean.equal(world.double().expand(3, -1))
    for row in noise:
        assert stats.kstest(row.numpy(), "norm").pvalue > 1e-4
    assert torch.corrcoef(noise).fill_diagonal_(0).abs().max() < 0.08
    assert not noise[0].eq(noise[1]).any()


def test_a_share_of_the_lanes_is_sampled_as_priced():
    terms = Terms(cl.methods.dp_fedavg(**LOCAL), cl.poisson(0.3), 2, 4.0, 1e-5, (1,) * 5, Options())
    ready = audited(terms, 0)
    seen = canary_clients.play(ready.fed, ready.w, 2, torch.ones(3000, dtype=torch.bool), False)
    there = int((seen.clean > 0.5).sum())
    assert set(seen.clean.round().unique().tolist()) == {0.0, 1.0}
    assert stats.binomtest(there, 6000, 0.3).pvalue > 1e-6
    assert stats.binomtest(there, 6000, 0.5).pvalue < 1e-9


@pytest.mark.parametrize("cohort", [cl.poisson(0.5), cl.fixed_size(5)], ids=["poisson", "fixed_size"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_lanes_with_and_without_the_canary_have_noise_of_their_own(cohort, dtype):
    """Confidence counts trials as independent: two of them under one noise would be one."""
    terms = Terms(cl.methods.dp_fedavg(**LOCAL), cohort, 1, 4.0, 1e-5, (1,) * 10, Options(dtype=dtype))
    ready = audited(terms, 0)
    seen = canary_clients.play(ready.fed, ready.w, 1, torch.arange(2000) % 2 == 1, ready.replaces)
    noise = (seen.shown - seen.clean)[0]
    with_canary, without = (some for _, _, some in canary_clients._cohorts(ready.fed, 1, 2000))
    each = min(len(with_canary), len(without))
    pairs = torch.stack([noise[with_canary[:each]], noise[without[:each]]])
    assert abs(float(torch.corrcoef(pairs)[0, 1])) < 6 / each**0.5
    assert abs(float(torch.corrcoef(pairs.abs())[0, 1])) < 6 / each**0.5


def test_the_score_of_correlated_noise_is_that_of_the_whitened_releases():
    """Noise A z, a canary in rounds 1 and 3: the best score has deviation |A^-1 h|."""
    torch.manual_seed(0)
    a = torch.tensor([[1.0, 0, 0], [-0.6, 1.0, 0], [-0.2, -0.6, 1.0]], dtype=torch.float64)
    h = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    world = torch.arange(100_000) % 2 == 1
    clean = h[:, None] * world.double()
    seen = Seen(clean + a @ torch.randn(3, 100_000, dtype=torch.float64), clean, world)
    score = fitted(seen, a).score(seen.shown)
    apart = (score[world].mean() - score[~world].mean()) / score[world].std()
    assert float(apart) == pytest.approx(float(torch.linalg.solve(a, h).norm()), rel=0.02)
    plain = fitted(seen).score(seen.shown)
    assert (plain[world].mean() - plain[~world].mean()) / plain[world].std() < apart - 0.1


def test_results_are_kept_and_drawn(tmp_path):
    found = of_entry("dp_fedavg", 400)
    save([found], tmp_path / "audit.json")
    assert load(tmp_path / "audit.json") == [found]
    assert json.loads((tmp_path / "audit.json").read_text())[0]["verdict"] == found.verdict


def test_a_bound_above_by_chance_is_looked_at_again():
    """At a confidence of 1 % every other audit is above; at the one of the second audit none is."""
    method = cl.methods.dp_fedavg(**LOCAL)
    tried = (audit(method, epsilon=4.0, trials=1000, confidence=0.01, seed=seed) for seed in range(20))
    found = next(one for one in tried if one.above)
    assert found.above
    assert not found.exposed
    assert found.confirmation.epsilon < found.certified
    assert "by chance" in found.verdict


def test_the_command_shows_both_bounds_and_fails_where_a_guarantee_is_false(command, tmp_path, monkeypatch):
    words = ("audit", "method=dp_fedavg", "epsilon=4", "clients=5", "--trials", "1000", "--quiet")
    sound = command(*words, "--kind", "all", cwd=tmp_path)
    assert sound.returncode == 0, sound.stderr
    for word in ("worst_case", "one_run", "one_shot", "estimate", "nothing wrong was found", "certified"):
        assert word in sound.stdout
    assert (tmp_path / "audit.png").stat().st_size > 10_000
    assert "write --trials VALUE" in command("audit", "method=dp_fedavg", "epsilon=4", "trials=0").stderr
    less_noise(monkeypatch, 0.4)
    broken = command(*words, cwd=tmp_path)
    assert broken.returncode == 1
    assert "EXPOSED: dp_fedavg spends at least" in broken.stdout
    assert load(tmp_path / "audit.json")[0].exposed


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"trials": 3}, "trials"),
        ({"confidence": 1.5}, "confidence"),
        ({"kinds": ["none"]}, "kind"),
        ({"kinds": []}, "a kind of audit"),
        ({"sizes": [0]}, "sizes"),
        ({"epsilon": None}, "epsilon"),
    ],
)
def test_what_makes_no_sense_is_refused(more, complaint):
    with pytest.raises(CloisterError, match=complaint):
        audit(cl.methods.dp_fedavg(**LOCAL), **{"epsilon": 4.0, **more})


def test_one_run_with_canaries_on_data_of_ones_own_bounds_what_is_certified(monkeypatch):
    """Beside clients who train; without noise nearly all coins are guessed."""
    task = cl.data.digits(clients=20)
    method = cl.methods.dp_fedavg(**LOCAL)
    found = audit(method, task, rounds=2, epsilon=8.0, trials=200, kinds=["one_run", "one_shot"])
    assert 0 < found.bounds[0].epsilon < found.certified
    assert found.bounds[1].confidence is None
    assert abs(found.bounds[1].epsilon - found.certified) < 4
    less_noise(monkeypatch, 1e-3)
    loud = audit(cl.methods.dp_fedavg(**LOCAL), task, rounds=2, epsilon=8.0, trials=200, kinds=["one_run"])
    assert loud.bounds[0].right > 0.95 * loud.bounds[0].guesses
    assert loud.bounds[0].epsilon > found.bounds[0].epsilon + 0.5
    samples = audit(cl.methods.pfl(batch_size=20), sizes=200, clients=2, epsilon=8.0, trials=600, kinds=["one_run"])
    assert 1 < samples.bounds[0].epsilon < samples.certified


def test_secure_randomness_is_audited_too():
    found = audit(cl.methods.dp_fedavg(**LOCAL), epsilon=4.0, trials=2000, secure_rng=True)
    assert replace(found, confirmation=None).lower > 1


def test_the_file_of_a_run_can_be_audited_although_it_names_a_model():
    from cloister.auditing.keys import audit_of

    keys = {"method": "dp_fedavg", "clip_norm": 1.0, "local_steps": 1, "data": "digits", "clients": 20}
    more = {"model": "mlp", "hidden": 8, "rounds": 1, "epsilon": 2.0, "delta": 1e-3}
    assert not audit_of({**keys, **more}, trials=200).exposed
