"""What a reader of published files is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.data.raw import RawData
from cloister.errors import CloisterError, nearest


@dataclass(frozen=True)
class Format:
    """`read(root, **options)` decodes what `files(root, **options)` lists; `version` grows when its result changes."""

    name: str
    read: Callable[..., RawData]
    files: Callable[..., list[Path]]
    version: int = 1

    def options(self, **given: Any) -> dict[str, Any]:
        """The options in full, defaults filled in.

        >>> Format("toy", lambda root, split="all": None, lambda root, split="all": []).options()
        {'split': 'all'}
        """
        known = {key: p.default for key, p in list(inspect.signature(self.read).parameters.items())[1:]}
        for key in given:
            if key not in known:
                remedy = nearest(key, known) if known else "it has none"
                raise CloisterError(f"Expected an option of {self.name}, found {key!r}: {remedy}.")
        return known | given
