"""ResNet-18 for small images, with normalization that does not mix samples."""

from __future__ import annotations

from torch import Tensor, nn

from cloister.models.activations import ActivationName, Offset, Scale, Temperature, activation_layer
from cloister.models.shapes import Shape, expect_images

GROUPS = 32


def resnet18(
    shape: Shape,
    classes: int,
    activation: ActivationName = "relu",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """ResNet-18 for CIFAR, as DP-FedSAM has it: 11,173,962 parameters for (3, 32, 32) and 10 classes.

    He, Zhang, Ren & Sun, "Deep residual learning for image recognition", CVPR 2016, with a 3x3 first convolution and
    no pooling after it. Every BatchNorm is a GroupNorm with 32 groups: there are no buffers.
    """
    channels = expect_images("resnet18", shape, least=8, published=(3, 32, 32))
    act = activation_layer(activation, scale, temperature, offset)
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.GroupNorm(GROUPS, 64), act]
    before = 64
    for width in (64, 128, 256, 512):
        layers += [Block(before, width, 1 if width == before else 2, act), Block(width, width, 1, act)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Block(nn.Module):
    """Two 3x3 convolutions around which the input is passed and added."""

    def __init__(self, before: int, width: int, stride: int, act: nn.Module) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, padding=1, bias=False),
            nn.GroupNorm(GROUPS, width),
            act,
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(GROUPS, width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.GroupNorm(GROUPS, width))
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        """The input and what the convolutions make of it, added."""
        out: Tensor = self.act(self.residual(x) + self.shortcut(x))
        return out
