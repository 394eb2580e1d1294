"""Reading one's own tables: `from_folder` with a schema beside `pandas.read_csv` of the same files.

    python benchmarks/user_data.py [--files 1000] [--rows 1000]

Every file is a client with ten columns of numbers and a label. Both read all files in turns within one process, and the
best of some turns counts, so that a busy machine slows both alike. The goal is at most twice the time of pandas, which
only parses: a task also has its cells checked and scaled, its clients named and its test set held out.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import cloister as cl

COLUMNS = [f"c{number}" for number in range(10)]
SCHEMA = {
    "label": "ill",
    "columns": {
        **{name: {"kind": "number", "range": [-4, 4], "fill": 0} for name in COLUMNS},
        "ill": {"kind": "category", "categories": ["0", "1"]},
    },
}


def write(folder: Path, files: int, rows: int) -> None:
    """Files of random numbers with four decimals, as people export them."""
    random = np.random.default_rng(0)
    for number in range(files):
        frame = pd.DataFrame(random.normal(size=(rows, len(COLUMNS))).round(4), columns=COLUMNS)
        frame["ill"] = random.integers(0, 2, rows)
        frame.to_csv(folder / f"client{number:04}.csv", index=False)


def seconds(function: Callable[[], object]) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder, asked.files, asked.rows)
        paths = sorted(folder.glob("*.csv"))
        ours, theirs = [], []
        for _ in range(asked.turns):
            theirs.append(seconds(lambda: [pd.read_csv(path) for path in paths]))
            ours.append(seconds(lambda: cl.data.from_folder(folder, schema=SCHEMA)))
    print(f"{asked.files:,} files of {asked.rows:,} rows, best of {asked.turns} turns")
    print(f"pandas.read_csv   {min(theirs):6.2f} s")
    print(f"from_folder       {min(ours):6.2f} s")
    print(f"ratio             {min(ours) / min(theirs):6.2f}  (at most 2)")


if __name__ == "__main__":
    main()
