"""torchmetrics, imported when a metric needs it, and whether or not torchvision can be."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any
from unittest import mock

from cloister.errors import CloisterError


@cache
def classification() -> Any:
    """torchmetrics' functions for classes.

    It imports torchvision where that is installed, for metrics of pictures. One that was built for another torch fails
    then, and is left out, since nothing here needs it.
    """
    name = "torchmetrics.functional.classification"
    try:
        return importlib.import_module(name)
    except Exception:  # whatever a package raises that does not fit this torch
        return _without_torchvision(name)


def _without_torchvision(name: str) -> Any:
    try:
        from lightning_utilities.core.imports import RequirementCache

        usual = RequirementCache.__bool__

        def there(self: Any) -> bool:
            return self.requirement != "torchvision" and bool(usual(self))

        with mock.patch.object(RequirementCache, "__bool__", there):
            return importlib.import_module(name)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CloisterError(
            f"Expected to import torchmetrics for a metric, found that it fails ({reason}): install torchmetrics and "
            "torch of versions that fit each other."
        ) from error
