"""Every code block of README.md and of the site runs; CONTRIBUTING.md says which markers a block may carry."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from documentation.code_blocks import page, pages_of
from documentation.running import run_page
from site_pages import KINDS

ROOT = Path(__file__).parents[2]
PAGES = pages_of(ROOT, ROOT / "docs" / "pages")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of the page's own; what its blocks export or change is put back."""
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.mark.parametrize("one", [one for one in PAGES if one.has_fast], ids=lambda one: one.name)
def test_blocks_run(one, folder):
    assert run_page(one, folder, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("one", [one for one in PAGES if one.has_slow], ids=lambda one: one.name)
def test_slow_blocks_run(one, folder):
    """All blocks of the page, in order: slow ones may need what others made."""
    run_page(one, folder, slow=True)


# Generated pages are made within tests: to make them when tests are collected would cost every run of pytest seconds.


def generated(kind: str, slow: bool, folder: Path) -> list[int]:
    """Run the blocks of all generated pages of a kind, each page in a folder of its own."""
    ran = []
    for path, text in KINDS[kind].pages(ROOT).items():
        one = page(path, text)
        if one.has_slow if slow else one.has_fast:
            own = folder / path.replace("/", "-")
            own.mkdir()
            os.chdir(own)
            ran += run_page(one, own, slow=slow)
    return ran


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_generated_pages_run(kind, folder):
    generated(kind, False, folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_slow_blocks_of_generated_pages_run(kind, folder):
    generated(kind, True, folder)


TRICKY = """
=== "Python"

    <!-- test: with rounds=2 -->
    ```python title="x"
    rounds = 60
    assert rounds == 2
    made = dict(rounds=60)
    ```

<!-- test: raises=KeyError -->

```python
made["other"]
```

<!-- test: file=notes/a.txt -->
```text
words
```

```python
assert open("notes/a.txt").read() == "words\\n" and made == {"rounds": 2}
```

<!-- test: status=2 -->
```console
$ cloister methods nothing_of_this_name
error: ...
```

```
output, and no command
```

<!-- test: skip because it installs, and more -->
```
pip install cloister
```
"""


def test_markers(folder):
    found = page("tricky", TRICKY)
    assert run_page(found, folder, slow=False) == [5, 13, 22, 27]
    assert [block.skipped for block in found.blocks] == [False] * 6 + [True]


@pytest.mark.parametrize(
    "wrong",
    [
        "```python\nassert False\n```",
        "<!-- test: raises=KeyError -->\n```python\npass\n```",
        "<!-- test: with rounds=2 -->\n```python\nepochs = 3\n```",
        "```\ncloister methods nothing_of_this_name\n```",
        "```console\nrm -r x\n```",
        "<!-- test: setup=nobody_wrote_this -->\n```python\npass\n```",
    ],
)
def test_a_block_that_does_not_run_is_noticed(wrong, folder):
    with pytest.raises(pytest.fail.Exception):
        run_page(page("wrong", wrong), folder, slow=False)


@pytest.mark.parametrize("marker", ["slowly", "skip", "skip because ", "setup hospitals"])
def test_a_marker_that_says_nothing_is_refused(marker):
    with pytest.raises(AssertionError, match="expected a"):
        page("wrong", f"<!-- test: {marker} -->\n```python\npass\n```")


def test_slow_blocks_are_left_out_of_the_quick_run(folder):
    text = "```python\nx = 1\n```\n<!-- test: slow -->\n```python\nx = 2\n```\n"
    assert run_page(page("both", text), folder, slow=False) == [1]
    assert run_page(page("both", text), folder, slow=True) == [1, 5]
    assert not page("all", f"<!-- test: page slow -->\n{text}").has_fast
