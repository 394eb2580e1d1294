"""Views: what a model sees of an image, and that nobody else's image has a say in it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

import cloister as cl
from cloister.client.preprocessing import gray, images, plain
from cloister.errors import CloisterError
from cloister.random.streams import fold
from cloister.round import cohort_total
from conftest import ENGINES, federation

IMAGES = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8))
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
KEY = torch.tensor(11)


def by_hand(picture: np.ndarray) -> np.ndarray:
    return (picture / 255 - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]


def test_normalizing_is_by_channel():
    seen = images(MEAN, STD).test(IMAGES, torch.float64)
    np.testing.assert_allclose(seen[5].numpy(), by_hand(IMAGES[5].numpy()), rtol=1e-12)
    assert torch.equal(images(MEAN, STD).train(IMAGES, KEY, torch.float64), seen)


def windows(picture: np.ndarray, pad: int, size: int) -> dict[tuple[int, int], bytes]:
    padded = np.pad(picture, ((0, 0), (pad, pad), (pad, pad)))
    span = padded.shape[-1] - size + 1
    return {
        (r, c): np.round(by_hand(padded[:, r : r + size, c : c + size]), 9).tobytes()
        for r in range(span)
        for c in range(span)
    }


@pytest.mark.parametrize(("pad", "size"), [(2, None), (4, 10)])
def test_a_crop_is_a_window_of_the_padded_image_and_all_windows_occur(pad, size):
    preprocessing, seen = images(MEAN, STD, pad=pad, size=size), Counter()
    options = [windows(picture.numpy(), pad, size or 8) for picture in IMAGES]
    for key in range(12):
        cropped = np.round(preprocessing.train(IMAGES, torch.tensor(key), torch.float64).numpy(), 9)
        for picture, known in zip(cropped, options, strict=True):
            where = [place for place, content in known.items() if content == picture.tobytes()]
            assert where, "not a window of the image"
            seen[where[0]] += 1
    assert set(seen) == set(options[0]), "every window has its chance"
    middle = preprocessing.test(IMAGES, torch.float64)
    if size is None:
        assert middle.shape == IMAGES.shape
    else:
        assert np.round(middle[0].numpy(), 9).tobytes() == options[0][(3, 3)]


def test_images_need_not_be_square_and_sizes_must_fit():
    oblong = torch.zeros(2, 1, 6, 10, dtype=torch.uint8)
    assert images((0.5,), (0.5,), pad=1).train(oblong, KEY, torch.float32).shape == (2, 1, 6, 10)
    assert images((0.5,), (0.5,), size=6).train(oblong, KEY, torch.float32).shape == (2, 1, 6, 6)
    framed = images((0.5,), (0.5,), pad=2, size=10, crop=False)
    assert torch.equal(framed.train(oblong, KEY, torch.float32), framed.test(oblong, torch.float32))
    with pytest.raises(CloisterError, match="size of at most 8"):
        images((0.5,), (0.5,), pad=1, size=9).test(oblong, torch.float32)
    with pytest.raises(CloisterError, match="3 channels"):
        images(MEAN, STD).test(oblong, torch.float32)


def test_flips_come_up_half_the_time_and_only_where_asked():
    upright = images(MEAN, STD).test(IMAGES, torch.float64)
    for arguments, axis in (({"flip": True}, -1), ({"flip_vertically": True}, -2)):
        preprocessing, flipped = images(MEAN, STD, **arguments), 0
        for key in range(10):
            seen = preprocessing.train(IMAGES, torch.tensor(key), torch.float64)
            for one, before in zip(seen, upright, strict=True):
                assert torch.equal(one, before) or torch.equal(one, before.flip(axis))
                flipped += int(not torch.equal(one, before))
        assert 140 < flipped < 260
        assert torch.equal(preprocessing.test(IMAGES, torch.float64), upright)


def test_gray_images_are_those_of_pillow_and_come_up_as_often_as_asked():
    known = {(255, 255, 255): 255, (255, 0, 0): 76, (0, 255, 0): 150, (0, 0, 255): 29, (10, 20, 30): 18, (0, 0, 0): 0}
    colors = torch.tensor(list(known), dtype=torch.uint8)[:, :, None, None]
    assert gray(colors)[:, 2, 0, 0].tolist() == list(known.values())
    pillow = pytest.importorskip("PIL.Image")
    for found, picture in zip(gray(IMAGES), IMAGES, strict=True):
        luma = np.array(pillow.fromarray(picture.permute(1, 2, 0).numpy()).convert("L"))
        assert np.array_equal(found.numpy(), np.stack([luma] * 3))
    preprocessing, upright = images(MEAN, STD, grayscale=0.1), images(MEAN, STD).test(IMAGES, torch.float64)
    grayed = images(MEAN, STD).test(gray(IMAGES), torch.float64)
    changed = 0
    for key in range(40):
        seen = preprocessing.train(IMAGES, torch.tensor(key), torch.float64)
        for one, before, after in zip(seen, upright, grayed, strict=True):
            assert torch.equal(one, before) or torch.equal(one, after)
            changed += int(torch.equal(one, after))
    assert 100 < changed < 220, "160 of 1600; a fifth, or a twentieth, would be noticed"
    assert torch.equal(preprocessing.test(IMAGES, torch.float64), upright)
    assert torch.equal(images(MEAN, STD, grayscale=1.0).train(IMAGES, KEY, torch.float64), grayed)


def test_an_image_of_one_channel_is_gray_already_and_none_is_named_where_none_is_asked_for():
    one = IMAGES[:, :1]
    made = images((0.5,), (0.5,), grayscale=1.0)
    assert torch.equal(made.train(one, KEY, torch.float32), made.test(one, torch.float32))
    assert "grayscale" not in images(MEAN, STD).settings, "older descriptions have none"
    with pytest.raises(CloisterError, match="grayscale"):
        images(MEAN, STD, grayscale=1.5)


def test_a_sample_does_not_depend_on_those_after_it_and_vmap_agrees():
    preprocessing = images(MEAN, STD, pad=2, flip=True, flip_vertically=True, grayscale=0.5)
    whole = preprocessing.train(IMAGES, KEY, torch.float32)
    assert torch.equal(preprocessing.train(IMAGES[:7], KEY, torch.float32), whole[:7])
    keys = fold(KEY, torch.arange(5))
    mapped = torch.func.vmap(lambda key, some: preprocessing.train(some, key, torch.float32))(
        keys, IMAGES.view(5, 8, 3, 8, 8)
    )
    for key, some, found in zip(keys, IMAGES.view(5, 8, 3, 8, 8), mapped, strict=True):
        assert torch.equal(preprocessing.train(some, key, torch.float32), found)
    assert not torch.equal(mapped[0], preprocessing.train(IMAGES[:8], keys[1], torch.float32)), "keys matter"


def test_plain_leaves_tokens_alone():
    assert plain().test(torch.tensor([[1, 2]]), torch.float32).dtype == torch.int64
    assert plain().train(torch.ones(2, 2, dtype=torch.float64), KEY, torch.float32).dtype == torch.float32


def pictures_task(**augment):
    raw = cl.data.RawData(
        cl.data.Samples(IMAGES[:30].numpy(), np.arange(30) % 4),
        cl.data.Samples(IMAGES[30:].numpy(), np.arange(10) % 4),
        4,
    )
    return cl.data.partition_data(raw, cl.data.iid(6), "pictures", images(MEAN, STD, **augment))


@pytest.mark.parametrize("engine", ENGINES[1:], ids=lambda e: f"{e.name}{e.chunk}")
def test_engines_agree_on_augmented_uint8_images(engine):
    task = pictures_task(pad=2, flip=True, flip_vertically=True, grayscale=0.3)
    assert task.population.inputs.dtype == torch.uint8
    net = cl.models.cnn(task.shape, 4, width=2)
    fed, w = federation(cl.methods.fedavg(lr=0.1, local_epochs=2, batch_size=3), task=task, model=net)
    everybody = torch.arange(6)
    torch.testing.assert_close(
        cohort_total(fed, engine, 1, w, everybody)[0],
        cohort_total(fed, ENGINES[0], 1, w, everybody)[0],
        rtol=1e-10,
        atol=1e-12,
    )


def test_a_run_on_uint8_images():
    run = cl.run(
        cl.methods.dp_fedavg(clip_norm=1.0, local_steps=2, noise_multiplier=1.0),
        pictures_task(pad=1),
        rounds=2,
        delta=1e-2,
        progress=False,
    )
    assert 0 <= run.accuracy <= 1
    assert "mean_client_accuracy" in run.history[-1]


def test_bad_views_are_refused():
    with pytest.raises(CloisterError, match="as many deviations as means"):
        images((0.5,), (0.1, 0.2))
    with pytest.raises(CloisterError, match="deviations > 0"):
        images((0.5,), (0.0,))
    with pytest.raises(CloisterError, match="pad"):
        images((0.5,), (0.1,), pad=-1)
