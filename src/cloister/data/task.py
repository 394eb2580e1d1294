"""A task: the clients' samples, a test set, a loss, and a model to start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cloister.client.losses import Loss, LossFunction, cross_entropy, loss_of, of_classes
from cloister.client.population import Population
from cloister.client.preprocessing import Preprocessing, images, plain
from cloister.core.hashing import hash_of
from cloister.data.arrays import owners_of, tensor_of, whole
from cloister.data.labels import declared_classes, expect_labels_of
from cloister.data.public_samples import others, rows_of_people
from cloister.data.raw import Array
from cloister.data.splits import by_owner, held_out, numbered
from cloister.errors import expect
from cloister.models import logistic


class Encoder(Protocol):
    """How raw data become inputs: declared in advance, never computed from the data."""

    def encode(self, raw: Any) -> Tensor:
        """The inputs of raw rows, whose labels may be missing."""

    def labels(self, raw: Any) -> Tensor | None:
        """The labels of raw rows; None where they have none."""

    def to_json(self) -> dict[str, Any]:
        """Plain values from which it can be made again (`cloister.data.encoders`)."""


@dataclass(frozen=True, repr=False)
class Task:
    """What a federation learns. `classes` is None where the labels are not classes."""

    name: str
    population: Population
    test_inputs: Tensor
    test_labels: Tensor
    classes: int | None
    model: Callable[[], nn.Module]
    loss: Loss = cross_entropy
    preprocessing: Preprocessing = field(default_factory=plain)
    """How stored inputs become what the model sees."""
    local_test: tuple[Tensor, Tensor] | None = None
    """Rows of the test set and the client that each counts for; a row may count for several."""
    copies: int = 1
    """With how many clients the most widespread sample lies; above 1, clients overlap."""
    public_samples: tuple[Tensor, Tensor] | None = None
    """Public inputs and labels, stored like the clients', to whom none of them belongs; none is of the test set."""
    prepared_by: Literal["sample", "client"] = "sample"
    """What a training sample was computed from beside public constants: itself alone, or its client's samples. A
    guarantee for single samples needs the former: then a neighbor differs in one row, and in nothing else."""
    label_dependent: bool = False
    """Whether labels decided which client holds which sample (`Partition.label_dependent`)."""
    classes_inferred: bool = False
    """Whether the number of classes was taken from the largest label, and not declared."""
    sample_notes: tuple[str, ...] = ()
    """What a guarantee for single samples leaves out because of the data, in words for the certificate."""
    client_names: tuple[str, ...] = ()
    """What clients are called, by number, where they have names; the roster is public."""
    class_names: tuple[str, ...] = ()
    """What classes are called, by number, where they have names."""
    encoder: Encoder | None = None
    """How raw rows (of a table, of a folder of images) became inputs and labels, for whoever predicts later."""

    def __post_init__(self) -> None:
        loss = loss_of(self.loss)  # a function will do as well
        object.__setattr__(self, "loss", loss if self.classes is None else of_classes(loss))
        fine = self.classes is None or self.classes >= 2
        expect(fine, "two classes at least", self.classes, "of one, every model is right, and accuracy says nothing")
        trained, tested = self.population.inputs.dtype, self.test_inputs.dtype
        alike = trained == tested or (trained.is_floating_point and tested.is_floating_point)
        expect(
            alike or not len(self.test_inputs),
            f"test inputs of {str(trained).removeprefix('torch.')}, as in training",
            str(tested).removeprefix("torch."),
            "store both alike",
        )

    def __repr__(self) -> str:
        """One line; the data are too many to be shown."""
        kind = f"{self.classes} classes" if self.classes else self.loss.name
        samples = int(self.population.counts.sum())
        test = f", {len(self.test_labels):,} to test" if len(self.test_labels) else ""
        shape = "x".join(map(str, self.shape)) or "1"
        return f"<Task {self.name}: {self.clients:,} clients, {samples:,} samples of {shape}{test}, {kind}>"

    @property
    def outputs(self) -> int:
        """How many outputs a model needs."""
        labels = self.population.labels
        return self.loss.outputs(self.classes, labels.shape[1] if labels.dim() > 1 else 1)

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.population.clients

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input as the model sees it."""
        return tuple(self.preprocessing.test(self.population.inputs[:1], torch.float32).shape[1:])

    def fingerprint(self) -> str:
        """A hash of all data, by which a resumed run knows that nothing changed; the same in memory and on the disk."""
        more = {"test_inputs": self.test_inputs, "test_labels": self.test_labels}
        if self.public_samples is not None:
            more |= {"public_inputs": self.public_samples[0], "public_labels": self.public_samples[1]}
        if self.local_test is not None:
            more |= {"local_test_rows": self.local_test[0], "local_test_clients": self.local_test[1]}
        people = {name: getattr(self.population, name) for name in ("inputs", "labels", "starts", "sizes")}
        return hash_of({**people, **more}, after=self.population.let_go)


def from_arrays(
    inputs: Any,
    labels: Any,
    clients: Any,
    *,
    test: float | tuple[Any, Any] = 0.2,
    model: Callable[[], nn.Module] | None = None,
    loss: Loss | LossFunction | str = cross_entropy,
    classes: int | None = None,
    registered: int | Sequence[str] | None = None,
    preprocessing: Preprocessing | None = None,
    name: str = "arrays",
    seed: int = 0,
    public_samples: int | tuple[Any, Any] = 0,
    class_names: Sequence[str] = (),
    encoder: Encoder | None = None,
) -> Task:
    """A task from anybody's arrays: inputs [n, ...], labels [n], and whose sample each one is [n].

    Which samples are held out, and where each one lies, goes by clients and their numbers of samples, never by what is
    in a sample: with another one in its place, every other stays where it is.

    Args:
        inputs: an array, a tensor or a list; its type says what the numbers are, see `cloister.data.arrays`.
        clients: anything that tells clients apart: numbers or names.
        test: a pair (inputs, labels), or the fraction of every client's samples to hold out at random.
        loss: by name (`cloister.client.losses.CATALOGUE`), or a function (outputs, labels) -> losses, batch first.
        classes: the number of classes; by default one more than the largest label, which the certificate says.
        registered: the number of clients, or all their names, where some have no sample at all.
        preprocessing: how stored inputs become what the model sees; by default bytes [n, c, h, w] are scaled as images.
        model: makes the model to start from; logistic regression by default.
        public_samples: a pair (inputs, labels), or a number of samples: so many whole clients, at random, are set aside
            that there are at least as many. They are clients no more, and nothing of theirs is held out for testing.

    >>> task = from_arrays(np.random.rand(50, 4), np.arange(50) % 3, np.arange(50) // 10)
    >>> task.clients, task.classes, len(task.test_labels)
    (5, 3, 10)
    """
    expect_types(model, preprocessing, name)
    loss = loss_of(loss)
    seed = whole("seed", seed, "any whole number that is not negative", least=0)
    x, y, owners = tensor_of("inputs", inputs), tensor_of("labels", labels), owners_of(clients)
    for what, length in (("labels", len(y)), ("clients", len(owners))):
        expect(length == len(x), f"as many {what} as inputs ({len(x)})", length, "give one for every sample")
    expect(len(x) > 0, "at least one sample", 0, "give some data")
    roster, population_size = _roster(owners, registered)

    known = None
    if isinstance(public_samples, (tuple, list)):
        known = pair_of("public", public_samples, x, "a number of samples")
        expect(len(known[1]) > 0, "at least one public sample", 0, "give some, or leave public out")
    elif not (isinstance(public_samples, int) and public_samples == 0):
        count = whole(
            "public_samples", public_samples, "the number of samples to set aside, or give (inputs, labels)", least=0
        )
        aside = rows_of_people(owners, count, seed)
        rest = others(aside, len(x))
        before, roster = len(roster), np.setdiff1d(roster, owners[aside])
        known, x, y, owners = (x[aside], y[aside]), x[rest], y[rest], owners[rest]
        population_size -= before - len(roster)
    known_owners, owner = numbered(owners)
    owner = np.searchsorted(roster, known_owners)[owner]

    local_test = None
    if isinstance(test, (tuple, list)):
        test_x, test_y = pair_of("test", test, x, "a fraction")
    else:
        fraction = isinstance(test, (float, np.floating)) and 0 < test < 1
        expect(fraction, "test_fraction to be a fraction between 0 and 1", test, "or give (inputs, labels)")
        held = np.zeros(len(x), dtype=bool)
        for name_of_owner, rows in by_owner(owners):
            held[rows[held_out(name_of_owner, len(rows), seed, float(test))]] = True
        local_test = (torch.arange(int(held.sum())), torch.from_numpy(owner[held]))
        test_x, test_y, x, y, owner = x[held], y[held], x[~held], y[~held], owner[~held]

    classes, inferred = declared_classes(classes, class_names, loss)
    parts = {"labels": y, "test labels": test_y} | ({} if known is None else {"public labels": known[1]})
    classes = expect_labels_of(parts, loss, classes)
    y, test_y = _label_dtype(y, loss), _label_dtype(test_y, loss)
    known = known and (known[0], _label_dtype(known[1], loss))
    preprocessing = preprocessing or usual_preprocessing(x)
    order = torch.from_numpy(np.argsort(owner, kind="stable"))
    sizes = torch.from_numpy(np.bincount(owner, minlength=population_size)).long()
    shape = tuple(preprocessing.test(x[:1], torch.float32).shape[1:])
    return Task(
        name=name,
        population=Population(x[order], y[order], sizes.cumsum(0) - sizes, sizes),
        test_inputs=test_x,
        test_labels=test_y,
        classes=classes,
        model=model or partial(logistic, shape, loss.outputs(classes, y.shape[1] if y.dim() > 1 else 1)),
        loss=loss,
        preprocessing=preprocessing,
        local_test=local_test,
        public_samples=known,
        classes_inferred=inferred,
        client_names=_client_names(roster, population_size),
        class_names=tuple(map(str, class_names)),
        encoder=encoder,
    )


def _roster(owners: Array, registered: int | Sequence[str] | None) -> tuple[Array, int]:
    """Those who are known by name or number, in order, and how many clients there are."""
    present = numbered(owners)[0]
    if registered is None or isinstance(registered, str) or not isinstance(registered, Sequence):
        wanted = len(present) if registered is None else registered
        return present, whole("registered", wanted, f"samples belong to {len(present)} clients", least=len(present))
    roster = owners_of(list(registered))
    strangers = np.setdiff1d(present, roster)
    expect(not len(strangers), "samples of registered clients", strangers[:3].tolist(), "register them")
    roster = np.unique(roster)
    return roster, len(roster)


def _client_names(roster: Array, clients: int) -> tuple[str, ...]:
    """Names, where clients have some; those without samples may have none."""
    if roster.dtype.kind not in "US":
        return ()
    names = [name.decode(errors="replace") if isinstance(name, bytes) else name for name in roster.tolist()]
    return (*names, *(f"client {number}" for number in range(len(names), clients)))


def _label_dtype(labels: Tensor, loss: Loss) -> Tensor:
    """Classes as whole numbers; other labels as fractions, but for a loss that somebody wrote for theirs."""
    if loss.classes:
        return labels.long()
    return labels if loss.own else labels.float()


def expect_types(model: object, preprocessing: object, name: object) -> None:
    """What is no data is what it should be."""
    expect(model is None or callable(model), "model to make a torch module", model, "give a function or a module")
    expect(
        preprocessing is None or isinstance(preprocessing, Preprocessing),
        "preprocessing to be a Preprocessing",
        preprocessing,
        "make one with cloister.client.preprocessing.images",
    )
    expect(isinstance(name, str), "name to be a word", name, "it is shown, and nothing else")


def pair_of(what: str, pair: Sequence[Any], like: Tensor, instead: str) -> tuple[Tensor, Tensor]:
    """Inputs and labels that somebody gives beside the clients'; the inputs have the shape of theirs."""
    expect(len(pair) == 2, f"{what} to be (inputs, labels)", len(pair), f"give both, or {instead}")
    x, y = tensor_of(f"{what} inputs", pair[0]), tensor_of(f"{what} labels", pair[1])
    expect(len(x) == len(y), f"as many {what} labels as {what} inputs", len(y), "give one for each")
    same = x.shape[1:] == like.shape[1:]
    expect(same, f"{what} inputs of shape {tuple(like.shape[1:])}", tuple(x.shape[1:]), "make them alike")
    return x, y


def usual_preprocessing(inputs: Tensor) -> Preprocessing:
    """Bytes of shape [c, h, w] are taken for pictures and scaled to [-1, 1]; other whole numbers are tokens."""
    if inputs.dtype == torch.uint8 and inputs.dim() == 4:
        return images((0.5,) * inputs.shape[1], (0.5,) * inputs.shape[1])
    return plain()
