"""The convolutional networks of the federated papers and benchmarks, layer by layer as they were published.

The published shapes give the published parameter counts; other images are taken too, and the first dense layer
follows their size. All end in logits: a log-softmax before the cross-entropy would change nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

from torch import nn

from cloister.errors import expect_share
from cloister.models.activations import ActivationName, Offset, Scale, Temperature, activation_layer
from cloister.models.shapes import Shape, expect_images, flat_size

Dropout = Annotated[
    float, "probability of dropout before the last layer, and half of it after the convolutions; 0 for none"
]


def emnist_cnn(
    shape: Shape,
    classes: int,
    dropout: Dropout = 0.5,
    activation: ActivationName = "relu",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """The network of the distributed discrete Gaussian, on which BLUR and LUS build: 1,018,174 parameters.

    Kairouz, Liu & Steinke, "The distributed discrete Gaussian mechanism for federated learning with secure
    aggregation", ICML 2021. That is for (1, 28, 28) and 62 classes, and just below 2^20, because their Hadamard
    transform pads to a power of two.
    """
    channels = expect_images("emnist_cnn", shape, least=8, published=(1, 28, 28))
    act = activation_layer(activation, scale, temperature, offset)
    convolutions = nn.Sequential(
        nn.Conv2d(channels, 32, 3), act, nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), act, nn.Flatten()
    )
    return _keras_like(convolutions, shape, classes, act, dropout)


def pfl_benchmark_cnn(
    shape: Shape,
    classes: int,
    dropout: Dropout = 0.5,
    activation: ActivationName = "relu",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """The CIFAR-10 network of pfl-research's benchmarks: 1,626,442 parameters for (3, 32, 32) and 10 classes.

    Granqvist et al., "pfl-research: simulation framework for accelerating research in private federated learning",
    NeurIPS 2024 (datasets and benchmarks).
    """
    channels = expect_images("pfl_benchmark_cnn", shape, least=6, published=(3, 32, 32))
    act = activation_layer(activation, scale, temperature, offset)
    convolutions = nn.Sequential(
        nn.Conv2d(channels, 32, 3), act, nn.Conv2d(32, 64, 3), act, nn.MaxPool2d(2), nn.Flatten()
    )
    return _keras_like(convolutions, shape, classes, act, dropout)


def fedsam_cnn(
    shape: Shape,
    classes: int,
    activation: ActivationName = "relu",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """DP-FedSAM's network for EMNIST: 903,614 parameters for (1, 32, 32) and 62 classes.

    Shi et al., "Make landscape flatter in differentially private federated learning", CVPR 2023. Their images are
    crops of 32x32 out of padded 28x28.
    """
    channels = expect_images("fedsam_cnn", shape, least=16, published=(1, 32, 32))
    act = activation_layer(activation, scale, temperature, offset)
    convolutions = nn.Sequential(
        nn.Conv2d(channels, 32, 5), nn.MaxPool2d(2), act, nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), act, nn.Flatten()
    )
    size = flat_size(convolutions, shape)
    return nn.Sequential(*convolutions, nn.Linear(size, 512), act, nn.Linear(512, classes))


def fedspa_mnist_cnn(
    shape: Shape,
    classes: int,
    activation: ActivationName = "relu",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """Fed-SPA's network for MNIST: 21,840 parameters for (1, 28, 28) and 10 classes.

    Hu, Gong & Guo, "Federated learning with sparsification-amplified privacy and adaptive optimization", IJCAI 2021.
    """
    channels = expect_images("fedspa_mnist_cnn", shape, least=16, published=(1, 28, 28))
    act = activation_layer(activation, scale, temperature, offset)
    convolutions = nn.Sequential(
        nn.Conv2d(channels, 10, 5), nn.MaxPool2d(2), act, nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), act, nn.Flatten()
    )
    size = flat_size(convolutions, shape)
    return nn.Sequential(*convolutions, nn.Linear(size, 50), act, nn.Linear(50, classes))


def fedspa_cifar_cnn(
    shape: Shape,
    classes: int,
    activation: ActivationName = "relu",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """Fed-SPA's network for CIFAR-10: 537,610 parameters for (3, 32, 32) and 10 classes."""
    channels = expect_images("fedspa_cifar_cnn", shape, least=22, published=(3, 32, 32))
    act = activation_layer(activation, scale, temperature, offset)
    widths = (channels, 64, 128, 256)
    convolutions = nn.Sequential()
    for before, after in pairwise(widths):
        convolutions.extend([nn.Conv2d(before, after, 3), nn.MaxPool2d(2), act])
    convolutions.append(nn.Flatten())
    size = flat_size(convolutions, shape)
    return nn.Sequential(*convolutions, nn.Linear(size, 128), act, nn.Linear(128, 256), act, nn.Linear(256, classes))


def _keras_like(convolutions: nn.Sequential, shape: Shape, classes: int, act: nn.Module, dropout: float) -> nn.Module:
    """The dense layers that both Keras networks share, and Keras's initial weights."""
    expect_share("dropout", dropout, "0 switches it off, and the paper has 0.5", zero=True)
    size = flat_size(convolutions, shape)
    model = nn.Sequential(
        *convolutions,
        nn.Dropout(dropout / 2),
        nn.Linear(size, 128),
        act,
        nn.Dropout(dropout),
        nn.Linear(128, classes),
    )
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model
