"""`python -m torture`: run campaigns, and sum up. Exit status 1 where something is wrong."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from torture import configs, crashes, data_files, folders, kills, messages
from torture.campaign import Campaign, Tally, limit_memory, run
from torture.report import merged, row_of, write

CAMPAIGNS = {
    one.name: one for module in (crashes, kills, folders, configs, data_files, messages) for one in (module.CAMPAIGN,)
}


def main() -> int:
    """Run all campaigns, or those that are named."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"campaigns (all without any): {', '.join(CAMPAIGNS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="0.01 is a smoke test, 10 a long night")
    parser.add_argument("--seed", type=int, default=0, help="other cases")
    parser.add_argument("--kept", type=Path, default=Path(".torture"), help="where an interrupted campaign goes on")
    parser.add_argument("--dry", action="store_true", help="write no documents")
    given, console = parser.parse_args(), Console()
    if not 0 < given.scale < float("inf"):
        parser.error(f"expected --scale above 0, found {given.scale}")
    unknown = set(given.names) - set(CAMPAIGNS)
    if unknown:
        console.print(f"Expected campaigns among {', '.join(CAMPAIGNS)}, found {', '.join(unknown)}: name these.")
        return 2
    torch.set_num_threads(1)
    rows, wrong = {}, 0
    for name in given.names or CAMPAIGNS:
        began = time.perf_counter()
        tally = _run(CAMPAIGNS[name], given.kept, given.seed, given.scale, console)
        rows[name] = row_of(CAMPAIGNS[name], tally, given.seed, time.perf_counter() - began)
        wrong += len(tally.wrong)
        console.print(f"{name}: {tally.cases} cases, {len(tally.wrong)} wrong, {dict(tally.counts)}", markup=False)
        for one in tally.wrong[:20]:
            console.print(f"  {one}", style="red", markup=False, soft_wrap=True)
        if not given.dry and given.scale >= 1:
            write(merged(rows))
    return 1 if wrong else 0


def _run(campaign: Campaign, kept: Path, seed: int, scale: float, console: Console) -> Tally:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    folder = Path(tempfile.mkdtemp(prefix=f"cloister-{campaign.name}-"))
    try:
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(campaign.name)

            def tell(tally: Tally, size: int) -> None:
                words = f"{campaign.name}, {len(tally.wrong)} wrong"
                bar.update(task, completed=tally.cases, total=size, description=words)

            if campaign.name in ("configs", "data files", "messages", "folders"):
                limit_memory()
            return run(campaign, folder, kept, seed, scale, tell)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
