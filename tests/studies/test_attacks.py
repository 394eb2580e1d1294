"""Attacks on runs: an image comes back without privacy and not with it; curves and what epsilon allows of them."""

from __future__ import annotations

import json
import math
import stat

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from cloister.errors import CloisterError
from cloister.studies.attacks.attack import attack
from cloister.studies.attacks.found import FILE, Attacks, most_true_positives, read_attacks
from cloister.studies.attacks.inversion import as_picture, correlation
from cloister.studies.attacks.membership import membership, roc

SHARED = ("data=digits", "clients=20", "model=mlp", "rounds=1", "lr=0.5", "local_steps=3", "cohort=full", "engine=loop")
OPEN = (*SHARED, "method=fedavg")
PRIVATE = (*SHARED, "method=dp_fedavg", "clip_norm=0.5", "epsilon=8", "delta=1e-3")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run without privacy and one with it."""
    from cloister.runs.config import build
    from cloister.runs.config_file import load

    place = tmp_path_factory.mktemp("runs")
    for name, words in (("open", OPEN), ("private", PRIVATE)):
        experiment = build(load(None, list(words)))
        experiment.start(folder=place / name, config=experiment.toml, progress=False)
    return place


def test_an_image_comes_back_without_privacy_and_not_with_it(command, folders, tmp_path):
    done = command(
        "attack", folders / "open", folders / "private", "-o", tmp_path / "a.png", "--images", 2, "--steps", 200
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert stat.S_IMODE((tmp_path / "a.png").stat().st_mode) == 0o600
    found = {name: read_attacks(folders / name) for name in ("open", "private")}
    assert [one.label for one in found["open"].inversion] == [one.label for one in found["private"].inversion]
    assert min(one.correlation for one in found["open"].inversion) > 0.9
    assert all(one.guessed == one.label for one in found["open"].inversion)
    assert max(one.correlation for one in found["private"].inversion) < 0.5
    assert found["open"].epsilon is None
    assert found["open"].allowed(0.1) is None
    assert found["private"].steps == 2  # add or remove a client: once out, once in
    assert found["private"].epsilon == pytest.approx(8, abs=0.01)
    file = folders / "open" / FILE
    assert json.loads(file.read_text())["mark"] == "NOT PRIVATE"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    page = command("report", folders, "-o", tmp_path / "page.html", "--no-labels")
    assert page.returncode == 0, page.stderr
    text = (tmp_path / "page.html").read_text()
    for words in ("Gradient inversion of one client", "Membership inference", "mean correlation"):
        assert words in text
    for name in ("open", "private"):
        (folders / name / FILE).unlink()


def test_what_was_found_is_kept_and_damage_is_told(folders):
    found = attack(folders / "open", ["membership"], samples=50, shadows=4)
    assert [(one.attack, one.shadows, one.members) for one in found.membership] == [
        ("loss", 0, 50),
        ("likelihood ratio", 4, 50),
    ]
    assert Attacks.from_json(json.loads(json.dumps(found.to_json()))) == found
    (folders / "open" / FILE).write_text('{"format": 2, "inversion": 3}')
    with pytest.raises(CloisterError, match="attacks"):
        read_attacks(folders / "open")
    (folders / "open" / FILE).unlink()


def test_a_curve_is_that_of_scikit_learn():
    random = np.random.default_rng(0)
    inside, outside = random.exponential(1.0, 400).round(2), random.exponential(1.5, 300).round(2)
    found = membership("loss", torch.from_numpy(-inside), torch.from_numpy(-outside))
    truth = roc_auc_score([1] * 400 + [0] * 300, -np.concatenate([inside, outside]))
    assert found.area == pytest.approx(truth, abs=1e-9)
    false_positive, true_positive = roc(-outside, -inside)
    assert (false_positive[0], true_positive[0], false_positive[-1], true_positive[-1]) == (0, 0, 1, 1)
    assert (np.diff(false_positive) >= 0).all()
    at = max(float((inside <= cut).mean()) for cut in [*inside, *outside] if (outside <= cut).mean() <= 0.1)
    assert found.at["0.1"] == pytest.approx(at)


def test_no_attack_on_randomized_response_beats_what_its_epsilon_allows():
    """Its curve has one corner, which lies on the bound."""
    epsilon = math.log(3)
    assert most_true_positives(0.25, epsilon, 0.0) == pytest.approx(0.75)
    assert most_true_positives(0.1, epsilon, 0.0) == pytest.approx(0.3)
    assert most_true_positives(0.5, epsilon, 0.0) == pytest.approx(1 - 0.5 / 3)
    assert most_true_positives(0.5, math.inf, 0.0) == 1
    assert most_true_positives(0.0, epsilon, 0.01) == pytest.approx(0.01)


def test_pictures_are_compared_up_to_brightness():
    picture = torch.rand(3, 8, 8)
    assert correlation(as_picture(picture), as_picture(5 * picture + 2)) == pytest.approx(1)
    assert as_picture(torch.rand(64)).shape == (8, 8)
    assert as_picture(torch.rand(10)).shape == (1, 10)


@pytest.mark.parametrize(
    ("more", "complaint"), [({"kinds": ["none"]}, "kind"), ({"images": 0}, "images"), ({"samples": 1}, "samples")]
)
def test_what_makes_no_sense_is_refused(folders, more, complaint):
    with pytest.raises(CloisterError, match=complaint):
        attack(folders / "open", **more)


@pytest.mark.slow
def test_a_run_with_secure_randomness_is_not_attacked(command, tmp_path):
    made = command("run", *PRIVATE, "secure_rng=true", "--folder", tmp_path / "a", "--quiet")
    assert made.returncode == 0, made.stderr
    refused = command("attack", tmp_path / "a")
    assert refused.returncode == 2
    assert "a release that nothing pays for" in refused.stderr
