"""Choices on disk: a process that holds the lock and never lets go of it is spoken of, and does not stop others."""

from __future__ import annotations

import os
import warnings

import pytest

from cloister.engine import disk_cache
from cloister.engine.disk_cache import DiskCache
from cloister.errors import Note

fcntl = pytest.importorskip("fcntl")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(disk_cache, "SILENT_WAIT", 0.1)
    monkeypatch.setattr(disk_cache, "LONGEST_WAIT", 0.3)
    return DiskCache("choices.json")


def held(cache) -> int:
    cache.path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(cache.path.with_name("choices.json.lock"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def test_a_lock_that_nobody_gives_back_is_waited_for_in_words_and_not_for_ever(cache):
    file = held(cache)
    with pytest.warns(Note, match="another process is choosing an engine") as said, cache.alone():
        cache.remember("key", "vectorized")
    assert len(said) == 1
    assert cache.recall("key") == "vectorized"
    os.close(file)


def test_a_free_lock_is_taken_without_a_word_and_given_back(cache):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with cache.alone():
            file = os.open(cache.path.with_name("choices.json.lock"), os.O_RDWR)
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(file)
