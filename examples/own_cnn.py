"""Your own CNN on MNIST by its writers: 539 people, each with all their digits, protected at epsilon 4.

Any torch module will do. What mixes samples or keeps statistics (BatchNorm) is refused; GroupNorm is fine. MNIST and
its writers are looked for under CLOISTER_DATA; `cloister data get qmnist` fetches them.

    python examples/own_cnn.py [ROUNDS]

On the command line, from this folder, the same network is named as module:class:

    cloister run data=qmnist model=own_cnn:Network width=8 epsilon=4 delta=1e-4 rounds=100 sampling_rate=0.5 \
        clip_norm=0.5 lr=0.3 batch_size=32 local_steps=2 server_lr=2 average=0.9
"""

import sys

from torch import Tensor, nn

import cloister as cl


class Network(nn.Module):
    """Two convolutions and a linear layer: fewer parameters are drowned by less noise."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2),
            nn.GroupNorm(4, width),
            nn.Tanh(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.Tanh(),
            nn.AvgPool2d(2, padding=1),
        )
        self.classes = nn.Linear(2 * width * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.classes(self.features(images).flatten(1))


if __name__ == "__main__":
    task = cl.data.qmnist()
    print(task)
    run = cl.run(
        cl.methods.dp_fedavg(clip_norm=0.5, lr=0.3, batch_size=32, local_steps=2, server=cl.server.sgd(lr=2.0)),
        task,
        model=Network(),
        rounds=int(sys.argv[1]) if len(sys.argv) > 1 else 100,
        cohort=cl.poisson(0.5),
        epsilon=4.0,
        delta=1e-4,  # well below 1/539
        average=0.9,  # of the released models, which costs nothing
        seed=0,
    )
    print(run)
    print(run.certificate)
