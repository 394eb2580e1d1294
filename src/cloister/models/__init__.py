"""Models by name, and what makes a model fit for federated training."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from cloister.models.adaptation import Adaptation
from cloister.models.attention import split_attention
from cloister.models.basic import cnn, linear_probe, logistic, mlp
from cloister.models.federated import emnist_cnn, fedsam_cnn, fedspa_cifar_cnn, fedspa_mnist_cnn, pfl_benchmark_cnn
from cloister.models.lora import lora, merge_lora
from cloister.models.norms import group_norm
from cloister.models.papernot import papernot_cifar_cnn, papernot_mnist_cnn, pfl_cifar_cnn, pfl_mnist_cnn
from cloister.models.recurrent import char_lstm
from cloister.models.resnet import resnet18
from cloister.models.scatter_nets import pfl_scatter_cnn, pfl_scatter_linear, scatter_cnn, scatter_linear
from cloister.models.scattering import scatter
from cloister.models.transformer import char_transformer

CATALOGUE: dict[str, Callable[..., nn.Module]] = {
    "logistic": logistic,
    "linear_probe": linear_probe,
    "mlp": mlp,
    "cnn": cnn,
    "emnist_cnn": emnist_cnn,
    "fedsam_cnn": fedsam_cnn,
    "resnet18": resnet18,
    "fedspa_mnist_cnn": fedspa_mnist_cnn,
    "fedspa_cifar_cnn": fedspa_cifar_cnn,
    "papernot_mnist_cnn": papernot_mnist_cnn,
    "papernot_cifar_cnn": papernot_cifar_cnn,
    "pfl_mnist_cnn": pfl_mnist_cnn,
    "pfl_cifar_cnn": pfl_cifar_cnn,
    "scatter_linear": scatter_linear,
    "scatter_cnn": scatter_cnn,
    "pfl_scatter_linear": pfl_scatter_linear,
    "pfl_scatter_cnn": pfl_scatter_cnn,
    "pfl_benchmark_cnn": pfl_benchmark_cnn,
    "char_lstm": char_lstm,
    "char_transformer": char_transformer,
}

__all__ = [
    "CATALOGUE",
    "Adaptation",
    "char_lstm",
    "char_transformer",
    "cnn",
    "emnist_cnn",
    "fedsam_cnn",
    "fedspa_cifar_cnn",
    "fedspa_mnist_cnn",
    "group_norm",
    "linear_probe",
    "logistic",
    "lora",
    "merge_lora",
    "mlp",
    "papernot_cifar_cnn",
    "papernot_mnist_cnn",
    "pfl_benchmark_cnn",
    "pfl_cifar_cnn",
    "pfl_mnist_cnn",
    "pfl_scatter_cnn",
    "pfl_scatter_linear",
    "resnet18",
    "scatter",
    "scatter_cnn",
    "scatter_linear",
    "split_attention",
]
