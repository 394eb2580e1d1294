"""The networks of example-level private learning: with tempered sigmoids, and the variants that others made of them.

Papernot, Thakurta, Song, Chien & Erlingsson, "Tempered sigmoid activations for deep learning with differential
privacy", AAAI 2021. For ReLU networks (such as Adap DP-FL's) say activation = "relu".
"""

from __future__ import annotations

from torch import nn

from cloister.models.activations import ActivationName, Offset, Scale, Temperature, activation_layer
from cloister.models.shapes import Shape, expect_images, flat_size


def papernot_mnist_cnn(
    shape: Shape,
    classes: int,
    activation: ActivationName = "tanh",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """Papernot et al.'s network for MNIST and FashionMNIST: 26,010 parameters for (1, 28, 28) and 10 classes.

    Adap DP-FL trains the same layers with ReLU.
    """
    channels = expect_images("papernot_mnist_cnn", shape, least=16, published=(1, 28, 28))
    act = activation_layer(activation, scale, temperature, offset)
    convolutions = nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=2),
        act,
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        act,
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
    )
    size = flat_size(convolutions, shape)
    return nn.Sequential(*convolutions, nn.Linear(size, 32), act, nn.Linear(32, classes))


def papernot_cifar_cnn(
    shape: Shape,
    classes: int,
    activation: ActivationName = "tanh",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """Papernot et al.'s network for CIFAR-10 as Tramèr & Boneh train it: 550,570 parameters for (3, 32, 32).

    "Differentially private learning needs better features (or much more data)", ICLR 2021: max-pooling, and a dense
    layer of 128. `pfl_cifar_cnn` has average pooling and ends in convolutions instead.
    """
    channels = expect_images("papernot_cifar_cnn", shape, least=8, published=(3, 32, 32))
    act = activation_layer(activation, scale, temperature, offset)
    convolutions = nn.Sequential(*_pairs(channels, act, nn.MaxPool2d(2)), nn.Flatten())
    size = flat_size(convolutions, shape)
    return nn.Sequential(*convolutions, nn.Linear(size, 128), act, nn.Linear(128, classes))


def pfl_mnist_cnn(
    shape: Shape,
    classes: int,
    activation: ActivationName = "relu",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """The smaller network that the PFL paper's own code trains on MNIST: 10,650 parameters for (1, 28, 28), 10 classes.

    arXiv 2501.14453. Its dense layer has ReLU whatever the activation of the convolutions.
    """
    channels = expect_images("pfl_mnist_cnn", shape, least=22, published=(1, 28, 28))
    act = activation_layer(activation, scale, temperature, offset)
    convolutions = nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2),
        act,
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        act,
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    size = flat_size(convolutions, shape)
    return nn.Sequential(*convolutions, nn.Linear(size, 32), nn.ReLU(), nn.Linear(32, classes))


def pfl_cifar_cnn(
    shape: Shape,
    classes: int,
    activation: ActivationName = "relu",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """The PFL paper's network for CIFAR-10: convolutions only, 605,226 parameters for (3, 32, 32) and 10 classes.

    arXiv 2501.14453. The last convolution has one channel per class, which is averaged over the image.
    """
    channels = expect_images("pfl_cifar_cnn", shape, least=8, published=(3, 32, 32))
    act = activation_layer(activation, scale, temperature, offset)
    return nn.Sequential(
        *_pairs(channels, act, nn.AvgPool2d(2)),
        nn.Conv2d(128, 256, 3, padding=1),
        act,
        nn.Conv2d(256, classes, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def _pairs(channels: int, act: nn.Module, pool: nn.Module) -> list[nn.Module]:
    """Three pairs of 3x3 convolutions with 32, 64 and 128 channels; each pair halves height and width."""
    layers: list[nn.Module] = []
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), act, nn.Conv2d(width, width, 3, padding=1), act, pool]
        channels = width
    return layers
