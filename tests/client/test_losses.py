"""Losses by name: against torch's own, against formulas written out, through every engine and for single samples."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import cloister as cl
from cloister.client.losses import CATALOGUE, Loss, cox, hazards, huber, loss_of, mae, main_output, mse
from cloister.client.objective import objective_of
from cloister.client.per_sample.ghost_clipping import GhostClipping
from cloister.client.per_sample.vmap import PerSampleVmap
from cloister.errors import CloisterError
from cloister.round import cohort_total
from conftest import ENGINES, federation
from per_sample.cases import BatchMean, batch_of, clipped_by_hand, near

ENDS = [10.0, 20.0, 50.0]
NAMES = ["cross_entropy", "multi_label", "ordinal", "mse", "mae", "huber", "hazards", "cox"]


def made(name: str) -> Loss:
    return loss_of(name, **({"intervals": ENDS} if name == "hazards" else {}))


def labels_for(name: str, n: int, random: np.random.Generator) -> np.ndarray:
    """Labels of every kind; times with ties, and some beyond the last interval."""
    if name in ("cross_entropy", "ordinal"):
        return np.concatenate([[0, 1, 2, 3], random.integers(0, 4, n)])[:n]
    if name == "multi_label":
        return random.integers(0, 2, (n, 3))
    if name in ("hazards", "cox"):
        return np.stack([random.integers(0, 70, n), random.integers(0, 2, n)], 1).astype(np.float32)
    return random.normal(size=n).astype(np.float32)


def by_torch(name: str, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Each loss once more, by torch's own functions, sample by sample; hazards and cox are written out below."""
    if name == "cross_entropy":
        return F.cross_entropy(outputs, labels, reduction="none")
    if name == "multi_label":
        return F.binary_cross_entropy_with_logits(outputs, labels, reduction="none").mean(1)
    if name == "ordinal":
        above = torch.stack([(labels > j).double() for j in range(outputs.shape[1])], 1)
        return F.binary_cross_entropy_with_logits(outputs, above, reduction="none").sum(1)
    if name == "hazards":
        rows = zip(outputs, labels, strict=True)
        return torch.stack([survival_by_hand(row, float(t), bool(e)) for row, (t, e) in rows])
    function = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.huber_loss}[name]
    return function(outputs.squeeze(1), labels.to(outputs.dtype), reduction="none")


def survival_by_hand(logits: torch.Tensor, time: float, event: bool) -> torch.Tensor:
    """Minus the log of the product of the conditional probabilities of what happened, interval after interval."""
    chance, begin = 1 + 0 * logits.sum(), 0.0
    for logit, end in zip(logits, ENDS, strict=True):
        hazard = 1 / (1 + torch.exp(-logit))
        if time >= end:
            chance = chance * (1 - hazard)
        elif time >= begin and event:
            chance = chance * hazard
        begin = end
    return -torch.log(chance)


def cox_by_hand(risks: list[float], times: list[float], events: list[bool]) -> list[float]:
    """Breslow: for every event, who was at risk then, those with the same time included."""
    losses = []
    for risk, time, event in zip(risks, times, events, strict=True):
        at_risk = [math.exp(r) for r, t in zip(risks, times, strict=True) if t >= time]
        losses.append(math.log(sum(at_risk)) - risk if event else 0.0)
    return losses


@pytest.mark.parametrize("name", NAMES[:-1])
def test_losses_are_what_they_are_elsewhere(name):
    random = np.random.default_rng(0)
    labels = torch.from_numpy(labels_for(name, 40, random))
    loss = made(name)
    width = loss.outputs(4, labels.shape[1] if labels.dim() > 1 else 1)
    outputs = torch.randn(40, width, dtype=torch.float64) * 3
    found = loss(outputs, labels)
    assert len(found) == 40
    found = found.mean(1) if found.dim() > 1 else found
    torch.testing.assert_close(found, by_torch(name, outputs, labels.double() if name == "multi_label" else labels))
    alone = torch.cat([loss(outputs[i : i + 1], labels[i : i + 1]).reshape(1, -1).mean(1) for i in range(40)])
    torch.testing.assert_close(found, alone)
    far = loss(outputs * 200, labels)
    assert far.isfinite().all(), "and stay finite where probabilities round to 0 or 1"


def test_next_token_is_the_mean_over_tokens_that_are_no_padding():
    outputs = torch.randn(5, 7, 11, dtype=torch.float64)
    labels = torch.randint(0, 11, (5, 7))
    labels[0, 3:], labels[1] = -1, -100
    found = CATALOGUE["next_token"](outputs, labels)
    for row, own, loss in zip(outputs, labels, found, strict=True):
        there = own >= 0
        expected = F.cross_entropy(row[there], own[there]) if there.any() else torch.zeros((), dtype=torch.float64)
        torch.testing.assert_close(loss, expected)


@given(st.lists(st.tuples(st.floats(-3, 3), st.integers(0, 4), st.booleans()), min_size=1, max_size=9))
def test_cox_is_breslows_likelihood_with_ties_and_censoring(rows):
    risks, times, events = (list(column) for column in zip(*rows, strict=True))
    labels = torch.tensor([times, events], dtype=torch.float64).T
    found = cox(torch.tensor(risks, dtype=torch.float64).unsqueeze(1), labels)
    assert found.tolist() == pytest.approx(cox_by_hand(risks, times, events), abs=1e-9)


def test_cox_leaves_padding_out():
    outputs, labels = (
        torch.randn(6, 1, dtype=torch.float64),
        torch.tensor([[3.0, 1], [1, 1], [2, 0], [9, 1], [9, 1], [0, 1]]),
    )
    mask = torch.tensor([True, True, True, False, False, False])
    found = cox(outputs, labels, mask)
    torch.testing.assert_close(found[:3], cox(outputs[:3], labels[:3]))
    assert found.isfinite().all()


@pytest.mark.parametrize(("make", "name"), [(mse, "mse"), (mae, "mae"), (huber, "huber")])
def test_numbers_are_learned_by_center_and_scale_and_predicted_in_their_own_units(make, name):
    loss, labels = make(center=100.0, scale=20.0), torch.tensor([[80.0, 100.0], [140.0, 0.0]])
    outputs = torch.tensor([[-1.0, 0.5], [2.0, -5.0]])
    errors = {"mse": [0.125, 0.0], "mae": [0.25, 0.0], "huber": [0.0625, 0.0]}[name]
    assert loss(outputs, labels).tolist() == pytest.approx(errors)
    assert loss.predict(outputs).tolist() == [[80.0, 110.0], [140.0, 0.0]]
    assert loss.predict(outputs[:, :1]).tolist() == [80.0, 140.0]
    assert loss.settings == {"center": 100.0, "scale": 20.0}


def test_outputs_of_regressions_may_be_flat_and_do_not_broadcast():
    outputs, labels = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 5.0])
    for one, other in ((outputs, labels), (outputs[:, None], labels), (outputs, labels[:, None])):
        assert mse()(one, other).tolist() == [0, 0, 4]


def test_probabilities_and_predictions_belong_together():
    outputs = torch.randn(50, 3, dtype=torch.float64)
    levels = CATALOGUE["ordinal"]
    chances = levels.predict_proba(outputs)
    assert chances.shape == (50, 4)
    assert (chances >= 0).all()
    torch.testing.assert_close(chances.sum(1), torch.ones(50, dtype=torch.float64))
    assert levels.predict(torch.tensor([[3.0, 2.0, -1.0], [-1.0, -2.0, -3.0], [9.0, 9.0, 9.0]])).tolist() == [2, 0, 3]
    surviving = hazards(ENDS).predict_proba(outputs)
    torch.testing.assert_close(surviving, (1 - outputs.sigmoid()).cumprod(1))
    torch.testing.assert_close(hazards(ENDS).predict(outputs), -surviving[:, -1].log())
    answers = CATALOGUE["multi_label"]
    assert torch.equal(answers.predict(outputs) == 1, answers.predict_proba(outputs) > 0.5)


def people(name: str, sizes=(5, 1, 9, 3), seed: int = 0, **more):
    random = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    labels = labels_for(name, len(owner), random)
    inputs = random.normal(size=(len(owner), 6))
    classes = {"classes": 4} if name in ("cross_entropy", "ordinal") else {}
    return cl.data.from_arrays(inputs, labels, owner, loss=made(name), test=(inputs, labels), **classes, **more)


@pytest.mark.parametrize("name", NAMES)
def test_engines_agree_on_every_loss(name):
    """Clients of unequal sizes are padded in one engine and not in the other."""
    task = people(name)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, task.outputs))
    fed, w = federation(cl.methods.fedavg(lr=0.3, batch_size=4, local_epochs=2), task=task, model=model)
    everybody = torch.arange(task.clients)
    expected = cohort_total(fed, ENGINES[0], 1, w, everybody)[0]
    assert expected.norm() > 0
    for engine in ENGINES[1:]:
        torch.testing.assert_close(cohort_total(fed, engine, 1, w, everybody)[0], expected, rtol=1e-9, atol=1e-12)


def test_a_step_of_cox_is_the_gradient_of_the_likelihood_of_its_batch():
    task = people("cox", sizes=(7,))
    model = nn.Linear(6, 1)
    fed, w = federation(cl.methods.fedavg(lr=1.0, batch_size=100, local_steps=1), task=task, model=model)
    own = task.population
    risks = model.double()(own.inputs.double()).squeeze(1)
    order = [[r for r, t in zip(risks, own.labels[:, 0], strict=True) if t >= time] for time in own.labels[:, 0]]
    terms = [
        torch.stack(at_risk).exp().sum().log() - risk
        for risk, at_risk, event in zip(risks, order, own.labels[:, 1], strict=True)
        if event
    ]
    gradients = torch.autograd.grad(torch.stack(terms).sum() / 7, list(model.parameters()))
    found = cohort_total(fed, ENGINES[1], 1, w, torch.tensor([0]))[0]
    torch.testing.assert_close(found, -torch.cat([g.flatten() for g in gradients]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES[:-1])
def test_samples_have_the_gradients_that_they_have_alone(name):
    task = people(name)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, task.outputs)).double().train()
    inputs, labels = task.population.inputs.double(), task.population.labels
    objective = objective_of(model, task.loss, inputs[:2], labels[:2], task.classes)
    assert isinstance(objective.per_sample.way, GhostClipping)
    w = objective.layout.flatten(dict(model.named_parameters()))
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        value = by_torch(name, model(x[None]), (y[None].double() if name == "multi_label" else y[None]))
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(value.sum(), list(model.parameters()))]))
    rows = torch.stack(rows)
    clip = float(rows.norm(dim=1).median())
    total, norms = objective.clipped(w, batch_of(inputs, labels), clip)
    assert near(norms, rows.norm(dim=1))
    assert near(total, clipped_by_hand(rows, clip))


@pytest.mark.parametrize("name", ["hazards", "mse"])
def test_a_model_that_mixes_samples_is_found_out_whatever_the_loss(name):
    """Labels on which a loss is constant would hide it: then both ways find no gradient at all."""
    model = BatchMean().double().train()
    model.last = nn.Linear(5, made(name).outputs(None, 1)).double()
    task = people(name)
    objective = objective_of(model, task.loss, task.population.inputs[:2].double(), task.population.labels[:2], None)
    assert isinstance(objective.per_sample.way, PerSampleVmap)


def test_a_loss_that_tells_nothing_of_made_up_labels_gets_the_way_that_is_always_right():
    def survivors(outputs, labels):
        return labels[:, 0] * outputs.squeeze(1)

    model = nn.Linear(6, 1).double()
    objective = objective_of(model, survivors, torch.randn(2, 6).double(), torch.ones(2, 2).double(), None)
    assert isinstance(objective.per_sample.way, PerSampleVmap)


class Answer(nn.Module):
    """Says the same in many forms."""

    def __init__(self, form: str, outputs: int = 1) -> None:
        super().__init__()
        self.form, self.layer = form, nn.Linear(6, outputs)

    def forward(self, x):
        found = self.layer(x)
        return {
            "tensor": found,
            "dict": {"logits": found, "hidden": x},
            "one": {"anything": found},
            "tuple": (found, x),
            "list": [found, None],
            "object": SimpleNamespace(logits=found),
        }[self.form]


@pytest.mark.parametrize("form", ["dict", "one", "tuple", "list", "object"])
@pytest.mark.parametrize("method", ["dp_fedavg", "pfl"])
def test_models_may_answer_in_many_forms(form, method):
    make = {
        "dp_fedavg": lambda: cl.methods.dp_fedavg(clip_norm=1.0, lr=0.1, local_steps=2, noise_multiplier=1.0),
        "pfl": lambda: cl.methods.pfl(clip_norm=1.0, lr=0.1, batch_size=4, noise_multiplier=1.0),
    }[method]
    torch.manual_seed(1)
    plain, other = Answer("tensor"), Answer(form)
    other.load_state_dict(plain.state_dict())
    task, more = people("mse", sizes=(8, 8, 8, 8)), {"rounds": 1, "delta": 0.01, "engine": "loop"}
    runs = [cl.run(make(), task, model=model, **more, allow_large_delta=True) for model in (plain, other)]
    assert runs[0].scores == runs[1].scores
    assert main_output(other(torch.zeros(2, 6))).shape == (2, 1)


class MeanAndSpread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x):
        return {"mean": self.mean(x), "log_spread": self.spread(x)}


OWN = cl.methods.pfl(clip_norm=1.0, lr=0.1, noise_multiplier=0.01)
"""With hardly any noise: other machines draw other noise, and it has to learn on all of them."""


def likelihood(outputs, labels):
    """Somebody's own loss, of all that the model says: minus the log-likelihood of a normal distribution."""
    mean, spread = outputs["mean"].squeeze(1), outputs["log_spread"].squeeze(1)
    return spread + 0.5 * ((labels - mean) / spread.exp()).square()


@pytest.mark.parametrize("method", [cl.methods.fedavg(lr=0.02, local_steps=3), OWN])
def test_an_own_loss_takes_the_whole_dict(method):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(60, 6)).astype(np.float32)
    task = cl.data.from_arrays(inputs, inputs[:, 0], np.arange(60) % 4, loss=likelihood, model=MeanAndSpread)
    noise = {"delta": 0.01, "engine": "vectorized", "evaluate_every": 1}
    run = cl.run(method, task, rounds=6, **noise)
    assert run.monitor == "loss"
    assert run.scores["loss"] < run.history[0]["loss"]
    with pytest.raises(CloisterError, match='name one of them "logits"'):
        cl.run(method, task, rounds=1, metrics=["mae"], **noise)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cox"])
def test_losses_by_name_train_at_both_levels(name):
    """From arrays to a certified run; what can be learned is learned without noise."""
    random = np.random.default_rng(3)
    inputs = random.normal(size=(400, 4)).astype(np.float32)
    signal = inputs @ np.array([2.0, -1.0, 0.5, 0.0], dtype=np.float32)
    labels = {
        "cross_entropy": (signal > 0).astype(int),
        "multi_label": np.stack([signal > 0, signal > 1, signal < -1], 1).astype(int),
        "ordinal": np.digitize(signal, [-1.0, 1.0]),
        "hazards": np.stack([30 * np.exp(-signal), np.ones(400)], 1),
    }.get(name, signal)
    loss = made(name) if name == "hazards" else name
    task = cl.data.from_arrays(inputs, labels, np.arange(400) % 10, loss=loss)
    user = cl.methods.dp_fedavg(clip_norm=1.0, lr=0.3, local_steps=5, noise_multiplier=0.2)
    sample = cl.methods.pfl(clip_norm=1.0, lr=0.5, batch_size=16, noise_multiplier=0.5)
    for method in (user, sample):
        run = cl.run(method, task, rounds=5, delta=1e-3, engine="vectorized", evaluate_every=1)
        assert run.history[-1]["loss"] < run.history[0]["loss"], "it learns"
        assert 0 < run.epsilon < math.inf


def test_cox_trains_where_clients_are_protected_and_is_refused_where_samples_are():
    random = np.random.default_rng(3)
    inputs = random.normal(size=(200, 4)).astype(np.float32)
    labels = np.stack([np.exp(-2 * inputs[:, 0]), np.ones(200)], 1)
    task = cl.data.from_arrays(inputs, labels, np.arange(200) % 5, loss="cox")
    run = cl.run(cl.methods.fedavg(lr=0.5, local_steps=5), task, rounds=5)
    assert run.scores["concordance"] > 0.9
    with pytest.raises(CloisterError, match="found cox, which compares the samples of a batch: use hazards") as refused:
        cl.run(cl.methods.pfl(clip_norm=1.0), task, rounds=1, epsilon=1.0, delta=1e-3)
    assert str(refused.value).count(". ") == 0


@pytest.mark.parametrize(
    ("name", "wide", "wanted"),
    [
        ("multi_label", 4, "with 3 outputs"),
        ("multi_label", 2, "with 3 outputs"),
        ("mse", 2, "with 1 outputs"),
        ("hazards", 1, "with 3 outputs"),
        ("hazards", 4, "with 3 outputs"),
        ("cox", 2, "with 1 outputs"),
        ("ordinal", 2, "with 3 outputs"),
        ("ordinal", 4, "with 3 outputs"),
        ("cross_entropy", 3, "with at least 4 outputs"),
    ],
)
def test_models_of_another_width_are_refused(name, wide, wanted):
    with pytest.raises(CloisterError, match=f"{wanted} per sample for the loss {name}, found outputs of shape"):
        cl.run(cl.methods.fedavg(lr=0.1, local_steps=1), people(name), rounds=1, model=nn.Linear(6, wide))


PAIRS = np.array([[3.0, 1], [4, 0], [5, 1], [2, 1]])
BAD = {
    "no such loss": (lambda: loss_of("l2"), "loss to be one of cross_entropy"),
    "settings of a loss that has none": (lambda: loss_of("cox", scale=2.0), "settings of the loss cox, found 'scale'"),
    "settings that it does not have": (lambda: loss_of("mse", centre=2.0), 'perhaps you mean "center"'),
    "settings beside a function": (lambda: loss_of(likelihood, scale=2.0), "given by name, found 'scale'"),
    "a number": (lambda: loss_of(3), "loss to be a name or a function, found 3"),
    "a class": (lambda: loss_of(nn.MSELoss), "loss to be a name or a function, found the class MSELoss"),
    "hazards without intervals": (lambda: loss_of("hazards"), r"losses\.hazards\(\[365, 730, 1825\]\)"),
    "intervals that fall": (lambda: hazards([730, 365]), r"rising times above 0, found \[730, 365\]"),
    "intervals that repeat": (lambda: hazards([365, 365]), "rising times"),
    "intervals from 0": (lambda: hazards([0, 365]), "rising times"),
    "no intervals": (lambda: hazards([]), "rising times"),
    "intervals as words": (lambda: hazards(["a", "b"]), "rising times"),
    "one interval as a number": (lambda: hazards(365), "rising times above 0, found 365"),
    "intervals that are no numbers": (lambda: hazards([float("nan")]), "rising times"),
    "a scale of 0": (lambda: mse(scale=0.0), "scale > 0"),
    "a negative scale": (lambda: mae(scale=-1.0), "scale > 0"),
    "a center that is no number": (lambda: huber(center=float("nan")), "center to be a finite number"),
    "a center as a word": (lambda: mse(center="mean"), "center to be a finite number, found 'mean'"),
    "times without events": (lambda: arrays(PAIRS[:, 0], "cox"), r"labels to be pairs \(time, event\), found \(3,\)"),
    "three numbers": (lambda: arrays(np.ones((4, 3)), "cox"), r"pairs \(time, event\), found \(3, 3\)"),
    "events of 2": (lambda: arrays(PAIRS * [1, 2], "cox"), "whose events are 0 or 1"),
    "negative times": (lambda: arrays(PAIRS * [-1, 1], "cox"), "whose times are not negative"),
    "times that are not finite": (lambda: arrays(PAIRS * [np.nan, 1], "cox"), "finite labels, found NaN"),
    "one question, flat": (lambda: arrays([0, 1, 1, 0], "multi_label"), r"labels of shape \[n, k\], found \(3,\)"),
    "answers of 2": (lambda: arrays(np.full((4, 2), 2), "multi_label"), "labels to be 0 or 1"),
    "levels that are fractions": (lambda: arrays([0.5, 1.5, 0.0, 1.0], "ordinal"), "whole numbers from 0"),
    "levels below 0": (lambda: arrays([0, -1, 1, 2], "ordinal", classes=3), "from 0 to 2, found -1"),
    "classes of numbers": (lambda: arrays([0.5, 1.5, 0.0, 1.0], "mse", classes=3), "no classes with the loss mse"),
}


def arrays(labels, loss, **more):
    return cl.data.from_arrays(np.ones((4, 2)), labels, [0, 0, 1, 1], loss=loss, test=0.3, **more)


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_is_refused_in_a_sentence(what):
    attempt, message = BAD[what]
    with pytest.raises(CloisterError, match=message) as refused:
        attempt()
    assert str(refused.value).startswith("Expected ")
    assert str(refused.value).endswith(".")
    assert "\n" not in str(refused.value)


def test_answers_without_a_tensor_to_read_are_refused():
    for answer in ({"a": torch.ones(2), "b": torch.ones(2)}, {}, (), ["a"], "logits", None):
        with pytest.raises(CloisterError, match="Expected a model"):
            main_output(answer)


def test_names_of_questions_are_no_classes():
    task = cl.data.from_arrays(
        np.ones((4, 2)), np.eye(4)[:, :2], [0, 0, 1, 1], loss="multi_label", class_names=["ill", "old"]
    )
    assert task.classes is None
    assert task.outputs == 2
