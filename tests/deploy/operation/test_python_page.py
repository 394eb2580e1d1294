"""docs/federation.md: the Python of the page runs as it stands, privately."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "federation.md").read_text()


def test_the_python_of_the_page_runs(tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/federation.md", "exec"), {"__name__": "page"})
    said = capsys.readouterr().out
    assert said.startswith("all rounds are done {'north': ")
    assert all(0 < float(one) <= 2 for one in re.findall(r": ([\d.]+)", said))
    assert (tmp_path / "server" / "model").is_dir()
