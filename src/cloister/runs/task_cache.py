"""Tasks that several runs in one process share: data are read and dealt to clients once, not once for each run."""

from __future__ import annotations

from collections.abc import Callable

from cloister.data.task import Task


class TaskCache:
    """The newest few tasks, by what they were made from.

    One belongs to one study and goes with it: a file that changes later is read anew by the next.
    """

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._kept: dict[str, Task] = {}

    def get(self, key: str, make: Callable[[], Task]) -> Task:
        """The task under this key, made where it is not there."""
        task = self._kept.pop(key, None) or make()
        self._kept[key] = task  # the newest is last
        while len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]
        return task


def size_of(task: Task) -> int:
    """Bytes of the samples in memory: the clients', unless they stay on the disk, those to test with, public ones."""
    people = task.population
    tensors = [task.test_inputs, task.test_labels, *(task.public_samples or ())]
    tensors += [people.inputs, people.labels] if people.stored is None else []
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
