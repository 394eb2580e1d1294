"""`python -m versions minimal` or `python -m versions pythons`, with tests/ on the path."""

from __future__ import annotations

import sys

from versions import minimal, pythons

KINDS = {"minimal": minimal.main, "pythons": pythons.main}

if __name__ == "__main__":
    if sys.argv[1:] not in [[kind] for kind in KINDS]:
        sys.exit(f"Expected one of {', '.join(KINDS)}, found {sys.argv[1:]}: name one.")
    sys.exit(KINDS[sys.argv[1]]())
