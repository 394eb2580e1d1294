"""The models of the papers: their published sizes, and their fitness for federated training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cloister.client.losses import cross_entropy
from cloister.client.objective import objective_of
from cloister.core import Batch, Layout
from cloister.errors import CloisterError
from cloister.models import CATALOGUE, cnn
from cloister.models.activations import TemperedSigmoid, activation_layer

COUNTS = [
    ("logistic", (1, 28, 28), 10, 7_850),
    ("linear_probe", (81, 7, 7), 10, 39_700),
    ("mlp", (1, 28, 28), 10, 25_450),
    ("cnn", (1, 28, 28), 10, 9_098),
    ("emnist_cnn", (1, 28, 28), 62, 1_018_174),
    ("fedsam_cnn", (1, 32, 32), 62, 903_614),
    ("resnet18", (3, 32, 32), 10, 11_173_962),
    ("resnet18", (3, 32, 32), 100, 11_220_132),
    ("fedspa_mnist_cnn", (1, 28, 28), 10, 21_840),
    ("fedspa_cifar_cnn", (3, 32, 32), 10, 537_610),
    ("papernot_mnist_cnn", (1, 28, 28), 10, 26_010),
    ("papernot_cifar_cnn", (3, 32, 32), 10, 550_570),
    ("pfl_mnist_cnn", (1, 28, 28), 10, 10_650),
    ("pfl_cifar_cnn", (3, 32, 32), 10, 605_226),
    ("scatter_linear", (81, 7, 7), 10, 39_700),
    ("scatter_linear", (243, 8, 8), 10, 155_530),
    ("scatter_cnn", (81, 7, 7), 10, 33_066),
    ("scatter_cnn", (243, 8, 8), 10, 187_210),
    ("pfl_scatter_linear", (81, 7, 7), 10, 47_638),
    ("pfl_scatter_linear", (243, 8, 8), 10, 186_634),
    ("pfl_scatter_cnn", (81, 7, 7), 10, 20_940),
    ("pfl_scatter_cnn", (243, 8, 8), 10, 180_016),
    ("pfl_benchmark_cnn", (3, 32, 32), 10, 1_626_442),
    ("char_lstm", (80,), 80, 81_616),
    ("char_transformer", (80,), 80, 2 * 80 * 64 + 2 * (4 * 64 + 4 * 65 * 64 + 65 * 256 + 257 * 64) + 2 * 64 + 65 * 80),
]
CNNS = sorted(name for name in CATALOGUE if name.endswith("cnn") or name == "resnet18")
# The smallest images that each network takes: what is one pixel smaller must be refused, not fail in torch.
LEAST = {
    "cnn": 4,
    "emnist_cnn": 8,
    "fedsam_cnn": 16,
    "resnet18": 8,
    "fedspa_mnist_cnn": 16,
    "fedspa_cifar_cnn": 22,
    "papernot_mnist_cnn": 16,
    "papernot_cifar_cnn": 8,
    "pfl_mnist_cnn": 22,
    "pfl_cifar_cnn": 8,
    "pfl_benchmark_cnn": 6,
}
ids = [f"{name}-{shape[0]}-{classes}" for name, shape, classes, _ in COUNTS]


def samples(name: str, shape: tuple[int, ...], classes: int, *size: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, classes, size)
    if name.startswith("char_"):
        return torch.randint(0, classes, (*size, *shape)), labels
    return torch.randn(*size, *shape, dtype=torch.float64), labels


def shape_of(name: str) -> tuple[tuple[int, ...], int]:
    return next((shape, classes) for known, shape, classes, _ in COUNTS if known == name)


def test_every_model_has_a_count():
    assert {name for name, *_ in COUNTS} == set(CATALOGUE)
    assert set(LEAST) == set(CNNS) - {"scatter_cnn", "pfl_scatter_cnn"}


@pytest.mark.parametrize(("name", "shape", "classes", "count"), COUNTS, ids=ids)
def test_parameters_are_as_published_and_there_are_no_buffers(name, shape, classes, count):
    model = CATALOGUE[name](shape, classes)
    assert Layout.of(model).size == count == sum(p.numel() for p in model.parameters())
    assert not list(model.buffers())


def test_the_resnet_has_the_published_tensors():
    assert len(list(CATALOGUE["resnet18"]((3, 32, 32), 10).parameters())) == 62
    assert len(list(CATALOGUE["fedsam_cnn"]((1, 32, 32), 62).parameters())) == 8


# The counts that a network's shape fixes are above. Here the largest nets take small images, so that a test of
# 11 million parameters stays a matter of seconds.
SMALL = {
    "resnet18": (3, 8, 8),
    "emnist_cnn": (1, 12, 12),
    "pfl_benchmark_cnn": (3, 12, 12),
    "char_lstm": (7,),
    "char_transformer": (7,),
}


_LARGE = pytest.mark.slow
"""A model with another number of classes is the same model."""


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        pytest.param(*case, id=name, marks=_LARGE if name == "resnet18-3-100" else ())
        for case, name in zip(COUNTS, ids, strict=True)
    ],
)
def test_stacked_gradients_are_the_gradients_one_by_one(name, shape, classes, count):
    torch.manual_seed(0)
    shape = SMALL.get(name, shape)
    model = CATALOGUE[name](shape, classes).double().train()
    inputs, labels = samples(name, shape, classes, 2, 3)
    objective = objective_of(model, cross_entropy, inputs[0], labels[0], classes)
    start = objective.layout.flatten(dict(model.named_parameters()))
    stack = torch.stack([start, start + 0.01 * torch.randn_like(start)])
    keys = torch.tensor([5, 6])
    mask = torch.tensor([True, True, False])

    def gradient(w, x, y, key):
        return objective.gradient(w, Batch(x, y, mask, torch.tensor(2), key, mask.any(), w.new_empty(0)))

    together = torch.func.vmap(gradient)(stack, inputs, labels, keys)
    for i in range(2):
        alone = gradient(stack[i], inputs[i], labels[i], keys[i])
        assert alone.abs().max() > 1e-4
        torch.testing.assert_close(together[i], alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["emnist_cnn", "pfl_benchmark_cnn"])
def test_dropout_is_the_papers_and_can_be_switched_off(name):
    shape, classes = shape_of(name)
    rates = [part.p for part in CATALOGUE[name](shape, classes) if isinstance(part, nn.Dropout)]
    assert rates == [0.25, 0.5]
    model = CATALOGUE[name](shape, classes, dropout=0.0).train()
    x = torch.randn(2, *shape)
    assert torch.equal(model(x), model(x))
    for wrong in (1.0, -0.1, True):
        with pytest.raises(CloisterError, match="0 <= dropout < 1"):
            CATALOGUE[name](shape, classes, dropout=wrong)


def test_the_tempered_sigmoid_is_tanh_at_its_defaults_and_the_formula_elsewhere():
    z = torch.linspace(-50, 50, 1001, dtype=torch.float64)
    torch.testing.assert_close(TemperedSigmoid(2.0, 2.0, 1.0)(z), torch.tanh(z), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(TemperedSigmoid(1.5, 0.7, 0.3)(z), 1.5 / (1 + torch.exp(-0.7 * z)) - 0.3)
    for wrong in ((0.0, 2.0), (2.0, -1.0)):
        with pytest.raises(CloisterError, match="tempered sigmoid"):
            TemperedSigmoid(*wrong, 1.0)


@pytest.mark.parametrize("name", CNNS)
def test_every_cnn_takes_the_activations(name):
    shape, classes = shape_of(name)
    shape = SMALL.get(name, shape)
    x = torch.randn(2, *shape, dtype=torch.float64)
    outputs = []
    for choice in (
        {"activation": "relu"},
        {"activation": "tanh"},
        {"activation": "tempered"},
        {"activation": "tempered", "temperature": 1.0, "scale": 3.0, "offset": 0.5},
    ):
        torch.manual_seed(0)
        outputs.append(CATALOGUE[name](shape, classes, **choice).double().eval()(x))
    relu, tanh, tempered, other = outputs
    assert not torch.allclose(relu, tanh)
    assert not torch.allclose(other, tanh)
    torch.testing.assert_close(tempered, tanh, rtol=1e-9, atol=1e-12)


def test_the_papers_activations_are_the_defaults():
    kinds = {}
    for name in CNNS:
        shape, classes = shape_of(name)
        kinds[name] = {type(m) for m in CATALOGUE[name](shape, classes).modules()} & {nn.ReLU, nn.Tanh, TemperedSigmoid}
    tanh = {"papernot_mnist_cnn", "papernot_cifar_cnn", "scatter_cnn", "pfl_scatter_cnn"}
    assert kinds == {name: {nn.Tanh} if name in tanh else {nn.ReLU} for name in CNNS}


def test_the_pfl_dense_layer_has_relu_whatever_the_activation():
    model = CATALOGUE["pfl_mnist_cnn"]((1, 28, 28), 10, activation="tanh")
    assert [type(m) for m in model if isinstance(m, (nn.Tanh, nn.ReLU))] == [nn.Tanh, nn.Tanh, nn.ReLU]


def test_an_unknown_activation_is_refused():
    with pytest.raises(CloisterError, match="relu, tanh, tempered, found 'rellu': perhaps you mean \"relu\""):
        cnn((1, 8, 8), 3, activation="rellu")
    with pytest.raises(CloisterError, match="one of relu, tanh, tempered"):
        activation_layer("", 2.0, 2.0, 1.0)


@pytest.mark.parametrize("name", sorted(LEAST))
def test_the_smallest_image_works_and_one_pixel_less_is_refused(name):
    least = LEAST[name]
    assert CATALOGUE[name]((3, least, least + 1), 5)(torch.randn(2, 3, least, least + 1)).shape == (2, 5)
    for wrong in ((3, least, least - 1), (28, 28), (784,), (1, 1, 28, 28)):
        with pytest.raises(CloisterError, match=rf"\(channels, height, width\) of at least {least}x{least}"):
            CATALOGUE[name](wrong, 5)


@pytest.mark.parametrize("name", ["scatter_linear", "scatter_cnn", "pfl_scatter_linear", "pfl_scatter_cnn"])
def test_scatter_models_take_scattering_features_alone(name):
    for wrong in ((1, 28, 28), (80, 7, 7), (3969,), (81, 7), (243, 1, 8)):
        with pytest.raises(CloisterError, match=r"such as \(81, 7, 7\) or \(243, 8, 8\)"):
            CATALOGUE[name](wrong, 10)
    model = CATALOGUE[name]((81, 7, 7), 10)
    x = torch.rand(2, 81, 7, 7)
    torch.testing.assert_close(model(255 * x), model(x), rtol=1e-2, atol=1e-2)


def groups(x: torch.Tensor) -> torch.Tensor:
    """27 groups of neighboring channels, each of mean 0 and variance 1 in a sample: by hand."""
    parts = x.reshape(len(x), 27, -1)
    mean = parts.mean(2, keepdim=True)
    variance = (parts - mean).square().mean(2, keepdim=True)
    return ((parts - mean) / (variance + 1e-5).sqrt()).reshape(x.shape)


def drawn(model: nn.Module) -> list[torch.Tensor]:
    """Parameters that are all of their own, scales and shifts among them."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.3, 0.2)
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("shape", [(81, 7, 7), (243, 8, 8)], ids=str)
def test_the_authors_scatter_models_compute_what_they_say(shape):
    """By functions of torch alone, with features of pixels from 0 to 255, as in the authors' code."""
    x = 255 * torch.rand(3, *shape, dtype=torch.float64)
    linear = CATALOGUE["pfl_scatter_linear"](shape, 10).double()
    scale, shift, weight, bias = drawn(linear)
    torch.testing.assert_close(linear(x), (groups(x).flatten(1) * scale + shift) @ weight.T + bias)

    net, tanh = CATALOGUE["pfl_scatter_cnn"](shape, 10).double(), torch.tanh
    scale, shift, *layers = drawn(net)
    h = groups(x) * scale[:, None, None] + shift[:, None, None]
    if shape[0] == 81:
        h = F.max_pool2d(tanh(F.conv2d(h, *layers[:2], stride=2, padding=1)), 2, 1)
        h = F.max_pool2d(tanh(F.conv2d(h, *layers[2:4], padding=1)), 2, 1).flatten(1)
        h = F.linear(tanh(F.linear(h, *layers[4:6])), *layers[6:])
        assert layers[4].shape == (32, 128)
    else:
        h = F.max_pool2d(tanh(F.conv2d(h, *layers[:2], padding=1)), 2)
        h = F.linear(F.max_pool2d(tanh(F.conv2d(h, *layers[2:4], padding=1)), 2).flatten(1), *layers[4:])
        assert layers[4].shape == (10, 256)
    torch.testing.assert_close(net(x), h)


def test_the_linear_model_as_printed_normalizes_nothing():
    x = torch.rand(3, 81, 7, 7, dtype=torch.float64)
    printed = CATALOGUE["scatter_linear"]((81, 7, 7), 10, normalization="none").double()
    weight, bias = drawn(printed)
    assert weight.numel() + bias.numel() == 39_700
    torch.testing.assert_close(printed(x), x.flatten(1) @ weight.T + bias)
    usual = CATALOGUE["scatter_linear"]((81, 7, 7), 10).double()
    usual.load_state_dict({"2.weight": weight, "2.bias": bias})
    torch.testing.assert_close(usual(x), groups(x).flatten(1) @ weight.T + bias)
    assert not torch.allclose(usual(x), printed(x))
    with pytest.raises(CloisterError, match="normalization to be one of groups, none, found 'batch'"):
        CATALOGUE["scatter_linear"]((81, 7, 7), 10, normalization="batch")
    with pytest.raises(CloisterError, match=r"such as \(81, 7, 7\)"):
        CATALOGUE["scatter_linear"]((1, 28, 28), 10, normalization="none")


@pytest.mark.parametrize(("channels", "least"), [(81, 5), (243, 4)])
def test_the_authors_convolutions_say_which_features_are_too_small(channels, least):
    net = CATALOGUE["pfl_scatter_cnn"]
    assert net((channels, least, least), 3)(torch.rand(2, channels, least, least)).shape == (2, 3)
    with pytest.raises(CloisterError, match="scattering features"):
        net((channels, least - 1, least), 3)
