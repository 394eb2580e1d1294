"""Which modules can be trained, and dropout that engines agree on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cloister as cl
from cloister.client.dropout import KeyedDropout
from cloister.client.losses import cross_entropy
from cloister.client.objective import objective_of
from cloister.errors import CloisterError
from cloister.models import group_norm
from cloister.round import cohort_total
from conftest import ENGINES, federation, toy_model, toy_task

IMAGES = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2])


def check(module: nn.Module, inputs=IMAGES, labels=LABELS, loss=cross_entropy, classes=3):
    return objective_of(module.train(), loss, inputs, labels, classes)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(192, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return self.layer(x.flatten(1))


class Constant(Counter):
    def forward(self, x):
        return self.layer(x.flatten(1)) + self.seen


class Noisy(Counter):
    def forward(self, x):
        return self.layer(x.flatten(1)) + torch.rand(3)


class FunctionalDropout(Counter):
    def forward(self, x):
        return self.layer(F.dropout(F.dropout2d(x, 0.4, self.training), 0.2, self.training).flatten(1))


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False), nn.SyncBatchNorm(4)])
def test_batch_norm_is_refused_and_the_remedy_works(norm):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Flatten(), nn.Linear(144, 3))
    with pytest.raises(CloisterError, match=r"group_norm\(model\)"):
        check(net)
    converted = group_norm(net)
    check(converted)
    assert isinstance(net[1], type(norm)), "the user's model is left alone"
    assert isinstance(converted[1], nn.GroupNorm)


def test_group_norm_reaches_nested_modules_and_keeps_scales():
    inner = nn.BatchNorm1d(6)
    nn.init.constant_(inner.weight, 2.0)
    converted = group_norm(nn.Sequential(nn.Sequential(nn.Linear(3, 6), inner)))
    assert converted[0][1].num_groups == 2
    assert converted[0][1].weight.tolist() == [2.0] * 6
    assert isinstance(group_norm(nn.BatchNorm2d(64)), nn.GroupNorm)


def test_instance_norm_with_running_statistics_is_refused_and_without_is_fine():
    def net(track: bool):
        return nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=track), nn.Flatten(), nn.Linear(192, 3))

    with pytest.raises(CloisterError, match="running statistics"):
        check(net(True))
    check(net(False))


def test_a_buffer_that_changes_is_refused_and_a_constant_one_is_fine():
    module = Counter()
    with pytest.raises(CloisterError, match="'seen' changes"):
        check(module)
    assert module.seen == 0, "the trial leaves no trace"
    check(Constant())


def test_foreign_randomness_is_refused():
    with pytest.raises(CloisterError, match="dropout layers alone"):
        check(Noisy())


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), "at least 3 outputs"),
        (nn.Sequential(nn.Flatten(), nn.Linear(191, 3)), "takes inputs of shape"),
        (nn.Flatten(), "trainable parameters"),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 3), nn.Flatten(0)), "at least 3 outputs|fails"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(module, message):
    with pytest.raises(CloisterError, match=message):
        check(module)


def test_a_loss_must_be_per_sample():
    with pytest.raises(CloisterError, match="one loss per sample"):
        check(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), loss=F.cross_entropy)


def test_frozen_parameters_stay_out():
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Linear(4, 3))
    net[1].requires_grad_(False)
    assert check(net).layout.size == 15


@pytest.mark.parametrize("engine", ENGINES[1:], ids=lambda e: f"{e.name}{e.chunk}")
@pytest.mark.parametrize("rule", [{"local_steps": 3}, {"local_epochs": 2}])
def test_dropout_is_the_same_under_every_engine(engine, rule):
    task = toy_task()
    fed, w = federation(cl.methods.fedavg(lr=0.3, batch_size=4, **rule), task=task, model=toy_model(task, dropout=True))
    everybody = torch.arange(task.clients)
    torch.testing.assert_close(
        cohort_total(fed, engine, 1, w, everybody)[0],
        cohort_total(fed, ENGINES[0], 1, w, everybody)[0],
        rtol=1e-10,
        atol=1e-13,
    )


def test_dropout_differs_between_clients_rounds_and_steps():
    """Twin clients with the same data would send the same update if their dropout were the same."""
    base = toy_task(sizes=(6,))
    people = base.population
    twins = type(people)(
        people.inputs.repeat(2, 1), people.labels.repeat(2), torch.tensor([0, 6]), torch.tensor([6, 6])
    )
    task = type(base)("twins", twins, base.test_inputs, base.test_labels, 3, base.model)
    method = cl.methods.fedavg(lr=0.3, batch_size=6, local_steps=1)
    for dropout, same in ((False, True), (True, False)):
        fed, w = federation(method, task=task, model=toy_model(task, dropout))
        first, second = (cohort_total(fed, ENGINES[1], 1, w, torch.tensor([c]))[0] for c in (0, 1))
        later = cohort_total(fed, ENGINES[1], 2, w, torch.tensor([0]))[0]
        assert torch.allclose(first, second) is same
        assert torch.allclose(first, later) is same


def test_dropout_drops_at_its_rate_and_scales_the_rest():
    with KeyedDropout(torch.tensor(1)) as mode:
        out = nn.Dropout(0.3)(torch.ones(200, 500))
    assert mode.calls == 1
    assert (out == 0).float().mean() == pytest.approx(0.3, abs=0.006)
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.7])


def test_functional_and_channel_dropout_follow_the_key():
    net = FunctionalDropout()
    outputs = []
    for key in (1, 1, 2):
        with KeyedDropout(torch.tensor(key)):
            outputs.append(net.train()(IMAGES))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    with KeyedDropout(torch.tensor(1)):
        whole = F.dropout2d(torch.ones(40, 10, 3, 3), 0.5)
    assert {len(set(channel.flatten().tolist())) for image in whole for channel in image} == {1}
    with KeyedDropout(torch.tensor(1)):
        assert torch.equal(net.eval()(IMAGES), net(IMAGES))
