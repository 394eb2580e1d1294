"""A node's rows, as the terms declare them: nothing is inferred from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cloister.deploy.halves import Rows
from cloister.deploy.terms import Terms
from cloister.deploy.terms.public_terms import PublicTerms, write_public
from cloister.errors import CloisterError
from deploy.halves.federations import PFL, data_of, tables, terms_of

SCHEMA = {
    "label": "sick",
    "columns": {
        "age": {"kind": "number", "range": [20, 90], "fill": 55},
        "sex": {"kind": "category", "categories": ["f", "m"]},
        "sick": {"kind": "boolean"},
    },
}


def schema_terms() -> Terms:
    found = tables(PFL)
    del found["samples"]
    return Terms.from_tables({**found, "schema": SCHEMA})


def test_tables_with_a_schema(tmp_path):
    (tmp_path / "a.csv").write_text("age,sex,sick\n50,f,0\n,m,1\n")
    (tmp_path / "b.csv").write_text("sick,sex,age\n1,m,90\n")
    terms = schema_terms()
    rows, one = Rows.load(tmp_path, terms), Rows.load(tmp_path / "a.csv", terms)
    assert rows.labels.tolist() == [0, 1, 1]
    assert rows.inputs.shape == (3, 3)
    assert torch.equal(rows.inputs[:2], one.inputs)
    assert rows.fingerprint != one.fingerprint == Rows.load(tmp_path / "a.csv", terms).fingerprint


def test_classes_are_declared_and_not_inferred(tmp_path):
    terms = terms_of(PFL)
    np.savez(tmp_path / "rows.npz", inputs=data_of(0, 5)[0], labels=np.zeros(5, dtype=np.int64))
    assert len(Rows.load(tmp_path / "rows.npz", terms)) == 5
    np.savez(tmp_path / "rows.npz", inputs=data_of(0, 5)[0], labels=np.full(5, 3))
    with pytest.raises(CloisterError, match="from 0 to 2"):
        Rows.load(tmp_path / "rows.npz", terms)


def test_a_folder_of_arrays(tmp_path):
    inputs, labels = data_of(0, 5)
    np.save(tmp_path / "inputs.npy", inputs)
    np.save(tmp_path / "labels.npy", labels)
    assert torch.equal(Rows.load(tmp_path, terms_of(PFL)).inputs, torch.from_numpy(inputs))


def test_a_folder_of_images(tmp_path):
    from PIL import Image

    terms = terms_of(PFL, {"shape": [1, 4, 4], "dtype": "uint8", "classes": 2, "class_names": ["cat", "dog"]})
    for number, name in enumerate(["cat", "dog", "dog"]):
        (tmp_path / name).mkdir(exist_ok=True)
        Image.new("L", (4, 4), 50 * number).save(tmp_path / name / f"{number}.png")
    rows = Rows.load(tmp_path, terms)
    assert rows.labels.tolist() == [0, 1, 1]
    assert rows.inputs.dtype == torch.uint8
    assert terms.samples.preprocessing["name"] == "images"


@pytest.mark.parametrize(
    ("inputs", "labels", "says"),
    [
        (np.zeros((4, 5), np.float32), np.zeros(4, int), "inputs of shape"),
        (np.zeros((4, 6), np.int64), np.zeros(4, int), "inputs of float32"),
        (np.full((4, 6), np.nan, np.float32), np.zeros(4, int), "finite"),
        (np.zeros((4, 6), np.float32), np.zeros(3, int), "as many labels"),
        (np.zeros((4, 6), np.float32), np.zeros((4, 2), int), "labels of shape"),
        (np.zeros((4, 6), np.float32), np.full(4, -1), "from 0 to 2"),
        (np.zeros((0, 6), np.float32), np.zeros(0, int), "and some"),
    ],
)
def test_rows_of_another_form_are_refused(inputs, labels, says):
    with pytest.raises(CloisterError, match=says):
        Rows.of(inputs, labels, terms_of(PFL).samples)


def test_nothing_there_is_a_sentence(tmp_path):
    with pytest.raises(CloisterError, match="found nothing at"):
        Rows.load(tmp_path / "nowhere", terms_of(PFL))


def test_public_samples_are_known_by_their_hash(tmp_path):
    samples = terms_of(PFL).samples
    inputs, labels = map(torch.from_numpy, data_of(9, 8))
    sha256 = write_public(tmp_path / "public.safetensors", inputs, labels)
    found = PublicTerms(sha256).read(tmp_path / "public.safetensors", samples)
    assert torch.equal(found[0], inputs)
    with pytest.raises(CloisterError, match="the public samples"):
        PublicTerms("0" * 64).read(tmp_path / "public.safetensors", samples)
    other = write_public(tmp_path / "other.safetensors", inputs[:, :3], labels)
    with pytest.raises(CloisterError, match="declares rows"):
        PublicTerms(other).read(tmp_path / "other.safetensors", samples)


def test_a_method_that_needs_public_samples_says_so():
    from cloister.deploy.halves.prepared import prepare

    values = {key: PFL[key] for key in ("lr", "batch_size", "noise_multiplier", "delta")}
    more = {"method": "ae_dpfl", "local_steps": 2, "cohort": "full", "allow_large_delta": True}
    with pytest.raises(CloisterError, match="public samples"):
        prepare(terms_of({**values, **more}))
