"""Folders of images as tasks: what is read is what lies there, and what is no image is refused by its name."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import cloister as cl
from cloister.data.encoders import encoder_from_json
from cloister.data.user import decoding
from cloister.errors import CloisterError, Corrupted

R = np.random.default_rng(0)


def picture(path: Path, *, size: tuple[int, int] = (6, 4), mode: str = "L", **options: object) -> np.ndarray:
    """A file of random pixels (height, width); gives these."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size if mode == "L" else (*size, {"RGB": 3, "RGBA": 4, "LA": 2}[mode])
    pixels = R.integers(0, 256, shape).astype(np.uint8)
    Image.fromarray(pixels, mode=None).convert(mode).save(path, **options)
    return pixels


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two clients, one of whom lacks a class, and a client without images."""
    for name in ("ann/cat/1", "ann/cat/2", "ann/dog/3", "ann/dog/4", "bob/cat/5", "bob/cat/6", "bob/cat/7"):
        picture(tmp_path / "pets" / f"{name}.png")
    (tmp_path / "pets" / "cid" / "dog").mkdir(parents=True)
    return tmp_path / "pets"


SIZE = [6, 4]


def read(folder: Path, **more: object):
    return cl.data.from_image_folder(str(folder), **{"size": SIZE, **more})


def test_every_image_is_where_it_belongs(folder):
    task = read(folder, test_fraction=0.34)
    assert task.client_names == ("ann", "bob", "cid")
    assert task.class_names == ("cat", "dog")
    assert task.name == "pets"
    assert task.shape == (1, 6, 4)
    assert (task.population.sizes + torch.bincount(task.local_test[1], minlength=3)).tolist() == [4, 3, 0]
    known = {}
    for file in folder.rglob("*.png"):
        known[np.asarray(Image.open(file)).tobytes()] = (file.parent.parent.name, file.parent.name)
    people = task.population
    for client, (start, size) in enumerate(zip(people.starts.tolist(), people.sizes.tolist(), strict=True)):
        for row in range(start, start + size):
            owner, label = known.pop(people.inputs[row].numpy().tobytes())
            assert (owner, label) == (task.client_names[client], task.class_names[people.labels[row]])
    for row, (image, label) in enumerate(zip(task.test_inputs, task.test_labels, strict=True)):
        owner, name = known.pop(image.numpy().tobytes())
        assert name == task.class_names[label]
        assert owner == task.client_names[task.local_test[1][row]]
    assert not known


def test_images_are_scaled_by_constants(folder):
    task = read(folder)
    seen = task.preprocessing.test(task.test_inputs, torch.float32)
    assert torch.allclose(seen, (task.test_inputs.float() / 255 - 0.5) / 0.5)


def test_classes_are_declared_or_the_certificate_says_that_they_are_not(folder):
    assert read(folder).classes_inferred
    declared = read(folder, classes=["dog", "cat", "cow"])
    assert not declared.classes_inferred
    assert declared.classes == 3
    assert declared.class_names == ("dog", "cat", "cow")
    assert set(declared.population.labels.tolist() + declared.test_labels.tolist()) == {0, 1}


def test_many_processes_read_what_one_reads(folder, monkeypatch):
    one = read(folder, workers=1)
    monkeypatch.setattr(decoding, "_WORTH", 1)
    monkeypatch.setattr(decoding, "_CHUNK", 2)
    assert read(folder, workers=3).fingerprint() == one.fingerprint()
    (folder / "ann/dog/3.png").write_bytes(b"none")
    (folder / "bob/cat/7.png").write_bytes(b"none")
    for _ in range(3):
        with pytest.raises(Corrupted, match=r"ann/dog/3\.png"):  # the first, whoever found it first
            read(folder, workers=3)


def test_an_image_changes_its_own_row_alone(folder):
    before = read(folder, test_fraction=0.34)
    picture(folder / "ann/cat/2.png")
    after = read(folder, test_fraction=0.34)
    differing = sum(
        int((one != other).flatten(1).any(1).sum())
        for one, other in ((before.population.inputs, after.population.inputs), (before.test_inputs, after.test_inputs))
    )
    assert differing == 1
    assert torch.equal(before.population.labels, after.population.labels)


@pytest.mark.parametrize(("suffix", "exact"), [("png", 1), ("bmp", 1), ("gif", 1), ("tiff", 1), ("PNG", 1), ("jpg", 0)])
def test_formats(folder, suffix, exact):
    pixels = picture(folder / f"cid/dog/new.{suffix}")
    task = read(folder)
    found = torch.cat([task.population.inputs, task.test_inputs])[:, 0].numpy().astype(int)
    away = np.abs(found - pixels).max((1, 2)).min()
    assert away == 0 if exact else away < 128


def only(tmp_path: Path, image: Image.Image, channels: int, name: str = "x.png") -> np.ndarray:
    """One image among others, as it is read."""
    form = decoding.ImageForm(image.height, image.width, channels)
    image.save(tmp_path / name)
    return decoding.decode([tmp_path / name], form)[0]


def test_modes_are_read_for_what_they_are(tmp_path):
    gray = R.integers(0, 256, (4, 5)).astype(np.uint8)
    colors = R.integers(0, 256, (4, 5, 3)).astype(np.uint8)
    deep = R.integers(0, 2**16, (4, 5)).astype(np.uint16)
    assert (only(tmp_path, Image.fromarray(gray), 1)[0] == gray).all()
    assert (only(tmp_path, Image.fromarray(gray), 3) == gray).all()
    assert (only(tmp_path, Image.fromarray(colors), 3) == colors.transpose(2, 0, 1)).all()
    luma = colors @ np.array([0.299, 0.587, 0.114])
    assert np.abs(only(tmp_path, Image.fromarray(colors), 1)[0] - luma).max() <= 1
    assert (only(tmp_path, Image.fromarray(deep), 1)[0] == deep // 256).all(), "not cut off at 255"
    with_alpha = np.concatenate([colors, R.integers(0, 256, (4, 5, 1)).astype(np.uint8)], axis=2)
    assert (only(tmp_path, Image.fromarray(with_alpha), 3) == colors.transpose(2, 0, 1)).all()
    few = Image.fromarray(gray // 64 * 64).convert("P")
    assert (only(tmp_path, few, 1)[0] == np.asarray(few.convert("L"))).all()
    black = Image.fromarray(gray > 128)
    assert (only(tmp_path, black, 1)[0] == (gray > 128) * 255).all()
    with pytest.raises(CloisterError, match=r"8 or 16 bits, found 32 \(mode F\) in .*x.tiff"):
        only(tmp_path, Image.fromarray(gray.astype(np.float32)), 1, "x.tiff")


def test_of_an_animation_the_first_image_counts(tmp_path):
    first, second = (Image.fromarray(np.full((4, 5), value, dtype=np.uint8)) for value in (10, 200))
    first.save(tmp_path / "x.gif", save_all=True, append_images=[second])
    assert (decoding.decode([tmp_path / "x.gif"], decoding.ImageForm(4, 5, 1)) == 10).all()


def test_sizes_are_declared(folder):
    picture(folder / "bob/cat/8.png", size=(7, 4))
    with pytest.raises(CloisterError, match=r"4x6 pixels, found 4x7 in .*bob/cat/8\.png.*resize=True"):
        read(folder)
    assert read(folder, resize=True).shape == (1, 6, 4)
    assert read(folder, size=9, resize=True, channels=3).shape == (3, 9, 9)


def test_hidden_files_and_notes_are_left_out(folder):
    for name in ("ann/cat/.DS_Store", "ann/.git/x.png", ".hidden/cat/x.png", "README.md", "ann/notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / "ann/cat/Thumbs.db").write_text("x")
    task = read(folder)
    assert task.client_names == ("ann", "bob", "cid")
    assert int(task.population.sizes.sum()) + len(task.test_labels) == 7


def cut(folder: Path) -> None:
    data = (folder / "ann/cat/1.png").read_bytes()
    (folder / "ann/cat/1.png").write_bytes(data[:-25])


def lies(folder: Path) -> None:
    (folder / "ann/cat/1.png").write_text("this is no picture")


def elsewhere(folder: Path) -> None:
    picture(folder / "ann/x.png")


def on_top(folder: Path) -> None:
    picture(folder / "x.png")


def deeper(folder: Path) -> None:
    picture(folder / "ann/cat/more/x.png")


def note(folder: Path) -> None:
    (folder / "ann/cat/notes.txt").write_text("x")


def broken_link(folder: Path) -> None:
    (folder / "ann/cat/link.png").symlink_to(folder / "nowhere.png")


def twice(folder: Path) -> None:
    (folder / "cid/dog/link.png").symlink_to(folder / "ann/cat/1.png")


def linked_client(folder: Path) -> None:
    (folder / "dan").symlink_to(folder / "ann")


def empty_file(folder: Path) -> None:
    (folder / "ann/cat/1.png").write_bytes(b"")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (cut, r"ann/cat/1\.png"),
        (lies, r"ann/cat/1\.png"),
        (empty_file, r"ann/cat/1\.png"),
        (elsewhere, r"ann/x\.png"),
        (on_top, r"x\.png"),
        (deeper, r"ann/cat/more"),
        (note, r"notes\.txt"),
        (broken_link, r"link\.png"),
        (twice, r"1\.png and .*link\.png"),
        (linked_client, r"ann/cat/1\.png and .*dan/cat/1\.png"),
    ],
)
def test_what_is_no_image_in_its_place_is_one_sentence_with_its_name(folder, spoil, why):
    spoil(folder)
    with pytest.raises(CloisterError, match=why) as found:
        read(folder)
    assert str(found.value).startswith("Expected ")
    assert "\n" not in str(found.value)


def test_links_are_followed(folder, tmp_path):
    picture(tmp_path / "elsewhere" / "x.png")
    picture(tmp_path / "other" / "dog" / "y.png")
    (folder / "cid/dog/x.png").symlink_to(tmp_path / "elsewhere" / "x.png")
    (folder / "dan").symlink_to(tmp_path / "other")
    task = read(folder)
    assert task.client_names == ("ann", "bob", "cid", "dan")
    assert int(task.population.sizes.sum()) + len(task.test_labels) == 9


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"size": 0}, "size"),
        ({"size": [1, 2, 3]}, "one number, or two"),
        ({"size": "big"}, "size"),
        ({"size": 5000}, "at most"),
        ({"channels": 2}, "channels"),
        ({"classes": ["cat"]}, r"ann/dog: perhaps|ann/dog: declare"),
        ({"classes": ["cat", "dogs"]}, 'perhaps you mean "dogs"'),
        ({"classes": ["cat", "cat", "dog"]}, "once"),
        ({"classes": "cat"}, "list of names"),
        ({"classes": []}, "declared|names"),
        ({"test_fraction": 2.0}, "fraction"),
        ({"workers": 0}, "workers"),
        ({"resize": "yes"}, "resize"),
    ],
)
def test_wrong_arguments_are_one_sentence(folder, arguments, why):
    with pytest.raises(CloisterError, match=why):
        read(folder, **arguments)


def test_folders_without_images_are_one_sentence(tmp_path):
    (tmp_path / "empty").mkdir()
    picture(tmp_path / "one" / "ann" / "cat" / "1.png")
    (tmp_path / "file").write_text("")
    for wrong, why in (("empty", "found none"), ("none", "check the name"), ("file", "check the name")):
        with pytest.raises(CloisterError, match=why):
            read(tmp_path / wrong)
    with pytest.raises(CloisterError, match="two classes"):
        read(tmp_path / "one")
    with pytest.raises(CloisterError, match="path"):
        cl.data.from_image_folder(3)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="whoever may read everything is refused nothing")
def test_a_folder_that_may_not_be_read_is_one_sentence(folder):
    (folder / "ann").chmod(0)
    try:
        with pytest.raises(CloisterError, match="ann"):
            read(folder)
    finally:
        (folder / "ann").chmod(0o755)


def test_the_encoder_takes_folders_lists_and_arrays(folder):
    task = read(folder)
    encoder = encoder_from_json(task.encoder.to_json())
    assert encoder == type(encoder)(encoder.form, ("cat", "dog"))
    names = ["ann/cat/1", "ann/cat/2", "ann/dog/3", "ann/dog/4", "bob/cat/5", "bob/cat/6", "bob/cat/7"]
    pixels = np.stack([np.asarray(Image.open(folder / f"{name}.png")) for name in names])
    assert (encoder.encode(folder)[:, 0].numpy() == pixels).all()
    assert (encoder.encode([folder / f"{name}.png" for name in names])[:, 0].numpy() == pixels).all()
    assert (encoder.encode(pixels)[:, 0].numpy() == pixels).all()
    assert (encoder.encode(pixels[:, None])[:, 0].numpy() == pixels).all()
    assert (encoder.encode(str(folder / "ann/cat/1.png"))[0, 0].numpy() == pixels[0]).all()
    assert encoder.labels(folder).tolist() == [0, 0, 1, 1, 0, 0, 0]
    columns = encoder.identity(folder)
    assert columns == {"file": [f"{name}.png" for name in names], "client": ["ann"] * 4 + ["bob"] * 3}
    assert encoder.identity(folder / "ann") == {"file": ["cat/1.png", "cat/2.png", "dog/3.png", "dog/4.png"]}
    assert encoder.labels(folder / "ann").tolist() == [0, 0, 1, 1]
    assert encoder.labels(pixels) is None
    picture(folder / "loose.png")
    assert encoder.labels(folder) is None


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ("nowhere", "a folder of images, or an image"),
        (np.zeros((2, 1, 4, 6), dtype=np.uint8), "shape"),
        (np.zeros((2, 1, 6, 4)), "uint8"),
        (np.zeros((6, 4), dtype=np.uint8), "shape"),
        ([], "uint8|shape"),
        (["nowhere.png"], "nowhere.png"),
        (None, "numbers"),
    ],
)
def test_what_the_encoder_does_not_take_is_one_sentence(folder, raw, why):
    with pytest.raises(CloisterError, match=why):
        read(folder).encoder.encode(raw)


def test_the_arguments_are_keys_of_the_command_line(folder, command, tmp_path):
    words = ["data=cloister.data:from_image_folder", f"path={folder}", "size=[6, 4]", 'classes=["cat", "dog"]']
    more = ["rounds=1", "sampling_rate=1.0", "clip_norm=1.0", "local_steps=1", "noise_multiplier=1.0", "delta=1e-2"]
    done = command("run", *words, *more, "engine=loop", "allow_large_delta=true", "--folder", tmp_path / "r", "--quiet")
    assert done.returncode == 0, done.stderr
    assert cl.load(tmp_path / "r").about.class_names == ["cat", "dog"]
