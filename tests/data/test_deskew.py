"""Images that are sheared upright: beside a reference with scipy, and by shears whose inverse is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage

import cloister as cl
from cloister.data.cache import cached
from cloister.data.deskew import deskewed, upright
from cloister.data.formats import FORMATS
from cloister.data.raw import RawData, Samples
from cloister.errors import CloisterError
from tiny_mnist import write_tiny_mnist

SIDE = 28


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch):
    write_tiny_mnist(tmp_path)
    monkeypatch.setenv("CLOISTER_DATA", str(tmp_path))
    return tmp_path


def blobs(count: int, seed: int = 0) -> np.ndarray:
    """Smooth drawings on black, none of which touches the border [n, side, side]."""
    random = np.random.default_rng(seed)
    drawn = np.zeros((count, SIDE, SIDE))
    slants = random.uniform(-0.6, 0.6, count)
    for y in range(8, 20):
        for image, slant in zip(drawn, slants, strict=True):
            first = 10 + round(slant * (y - 14))
            image[y, first : first + 8] = random.random(8) < 0.4
    drawn = ndimage.gaussian_filter(drawn, (0, 1, 1))
    return np.round(255 * drawn / drawn.max((1, 2), keepdims=True)).astype(np.uint8)


def reference(image: np.ndarray) -> np.ndarray:
    """One image on black, by weighted moments and an interpolation that are not the library's."""
    ys, xs = np.indices(image.shape)
    weights = image.astype(float).ravel()
    if not weights.any():
        return image
    moments = np.cov(np.stack([ys.ravel(), xs.ravel()]), aweights=weights, ddof=0)
    middle = np.average(ys.ravel(), weights=weights)
    slant = np.clip(moments[0, 1] / moments[0, 0], -1, 1) if moments[0, 0] > 0 else 0.0
    moved = ndimage.map_coordinates(image.astype(float), [ys, xs + slant * (ys - middle)], order=1, cval=0.0)
    return np.round(moved).astype(np.uint8)


def slants_of(images: np.ndarray) -> np.ndarray:
    ys, xs = np.indices(images.shape[1:])
    found = []
    for image in images.astype(float):
        moments = np.cov(np.stack([ys.ravel(), xs.ravel()]), aweights=image.ravel(), ddof=0)
        found.append(moments[0, 1] / moments[0, 0])
    return np.array(found)


def run(images: np.ndarray) -> np.ndarray:
    return upright(torch.from_numpy(images)[:, None])[:, 0].numpy()


def test_beside_a_reference():
    images = blobs(200)
    theirs = np.stack([reference(image) for image in images])
    assert np.abs(run(images).astype(int) - theirs.astype(int)).max() <= 1, "halves may be rounded either way"
    assert np.abs(slants_of(images)).mean() > 0.1
    assert np.abs(slants_of(run(images))).max() < 0.02, "rows and columns are uncorrelated"


@pytest.mark.parametrize("slope", [1, -1])
def test_a_shear_is_undone(slope):
    """Rows that are their own mirror images are upright; moved by whole pixels, they come back bit by bit."""
    random = np.random.default_rng(1)
    image = np.zeros((1, SIDE + 1, SIDE + 1), np.uint8)
    left = random.integers(0, 256, (9, 3), dtype=np.uint8)
    image[0, 10:19, 11:14], image[0, 10:19, 15:18] = left, left[:, ::-1]
    image[0, 10:19, 14] = 255
    image[0, 14:19] = image[0, 10:15][::-1]  # and its rows weigh the same above and below the middle
    sheared = np.stack([[np.roll(row, slope * (y - 14)) for y, row in enumerate(image[0])]]).astype(np.uint8)
    assert not np.array_equal(sheared, image)
    assert np.array_equal(run(sheared), image)
    assert np.array_equal(run(image), image)


def test_no_more_than_half_a_right_angle():
    """A line that rises by one row in three columns is sheared by one column a row, not by three."""
    image = np.zeros((1, SIDE, SIDE), np.uint8)
    for step in range(8):
        image[0, 10 + step, 2 + 3 * step : 5 + 3 * step] = 200
    assert slants_of(image)[0] > 2.5
    assert 1.5 < slants_of(run(image))[0] < slants_of(image)[0] - 0.9


def test_black_on_white_is_white_on_black():
    images = blobs(50)
    assert np.abs((255 - run(images)).astype(int) - run(255 - images).astype(int)).max() <= 1


def test_where_there_is_nothing_to_shear():
    blank, row, dot = (np.zeros((1, SIDE, SIDE), np.uint8) for _ in range(3))
    row[0, 12, 5:20], dot[0, 7, 9] = 255, 255
    for image in (blank, blank + 255, row, dot):
        assert np.array_equal(run(image), image)


def test_an_image_depends_on_itself_alone():
    """Nothing has to be paid for: whatever others are there, in whatever order, across parts of a batch."""
    many = np.concatenate([blobs(100, seed) for seed in range(45)])[:, None]  # more than a part of 4,096
    labels = np.zeros(len(many), np.int64)
    whole = deskewed(RawData(Samples(many, labels), Samples(many[:0], labels[:0]), 2))
    assert (len(whole.train.inputs), len(whole.test.inputs)) == (len(many), 0)
    for index in (0, 4095, 4096, len(many) - 1):
        assert np.array_equal(whole.train.inputs[index, 0], run(many[index])[0])
    back = deskewed(RawData(Samples(many[::-1].copy(), labels), Samples(many[:3], labels[:3]), 2))
    assert np.array_equal(back.train.inputs[::-1], whole.train.inputs)
    assert np.array_equal(back.test.inputs, whole.train.inputs[:3])


def test_sets_of_images_have_it_as_an_option(tiny_mnist):
    own, plain = cl.data.mnist(cl.data.iid(6), deskew=True), cl.data.mnist(cl.data.iid(6))
    read = FORMATS["mnist"].read(tiny_mnist)
    expected = run(np.array(read.train.inputs[:, 0]))
    found = own.population.inputs[:, 0]
    order = torch.argsort(found.flatten(1).long().sum(1), stable=True)  # of clients, so that rows are in another order
    theirs = torch.from_numpy(expected)
    assert torch.equal(found[order].flatten(1).long().sum(1), theirs.flatten(1).long().sum(1).sort().values)
    assert not torch.equal(own.population.inputs, plain.population.inputs)
    assert np.array_equal(cached("mnist", tiny_mnist, deskewed).train.inputs[:, 0], expected)
    assert torch.equal(cl.data.mnist(cl.data.iid(6)).population.inputs, plain.population.inputs), (
        "kept apart on the disk"
    )


def test_scattering_features_are_of_the_upright_images(tiny_mnist):
    both, plain = (cl.data.mnist(cl.data.iid(6), features="scatter", deskew=on) for on in (True, False))
    images = cl.data.mnist(cl.data.iid(6), deskew=True).population.inputs.float() / 255
    torch.testing.assert_close(
        both.population.inputs,
        torch.from_numpy(cl.models.scatter(images)).to(both.population.inputs),
        atol=1e-4,
        rtol=0,
    )
    assert not torch.allclose(both.population.inputs, plain.population.inputs, atol=1e-2)


def test_colors_and_slips_are_refused(tiny_mnist):
    colors = RawData(*[Samples(np.zeros((2, 3, 8, 8), np.uint8), np.zeros(2, np.int64))] * 2, 2)
    with pytest.raises(CloisterError, match="beside deskew = true, found 3: leave deskew out"):
        deskewed(colors)
    with pytest.raises(CloisterError, match="deskew"):
        cl.data.mnist(deskew="yes")
