"""Facts about the data sets: what they are, where they come from, how they are checked, who is to be cited.

Places and checksums are those that torchvision (MNIST, FashionMNIST, EMNIST, QMNIST, CIFAR), TensorFlow Federated
(fed_emnist), TensorFlow Datasets (shakespeare) and FLamby (heart) publish. Nothing here reads or fetches anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloister.errors import CloisterError, nearest


@dataclass(frozen=True)
class Member:
    """A file of an archive: its name in there, its place under the data folder, its checksum if one is known."""

    name: str
    path: str
    md5: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class File:
    """Something to download. `path` is its place under the data folder; an archive lies there only while unpacked.

    `bytes` is for showing; the checksum decides, and is of what the server sends. With `compress`, what was sent is
    stored gzip-compressed.
    """

    url: str
    path: str
    md5: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    unpack: bool = False
    members: tuple[Member, ...] = ()
    compress: bool = False

    @property
    def pieces(self) -> tuple[Member, ...]:
        """What lies in the data folder in the end."""
        return self.members if self.unpack else (Member("", self.path, self.md5, self.sha256),)


@dataclass(frozen=True)
class Entry:
    """A data set. `by_hand` are the places (patterns) of what no download gives; with all of them it is there."""

    name: str
    title: str
    what: str
    samples: str
    license: str
    citation: str
    files: tuple[File, ...] = ()
    note: str = ""
    by_hand: tuple[str, ...] = ()


def _plain(base: str, folder: str, *rows: tuple[str, str, int]) -> tuple[File, ...]:
    return tuple(File(f"{base}/{name}", f"{folder}/{name}", md5=md5, bytes=size) for name, md5, size in rows)


def _cifar(archive: str, md5: str, size: int, folder: str, **members: str) -> tuple[File, ...]:
    inside = tuple(Member(f"{folder}/{name}", f"{folder}/{name}", md5=check) for name, check in members.items())
    return (File(f"https://www.cs.toronto.edu/~kriz/{archive}", archive, md5, None, size, True, inside),)


def _har_members() -> tuple[Member, ...]:
    signals = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
    names = ["README.txt", "activity_labels.txt"]
    for part in ("train", "test"):
        names += [f"{part}/{table}_{part}.txt" for table in ("X", "y", "subject")]
        names += [f"{part}/Inertial Signals/{signal}_{part}.txt" for signal in signals]
    return tuple(Member(f"UCI HAR Dataset/{name}", f"UCI HAR Dataset/{name}") for name in names)


_MNIST = _plain(
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "MNIST/raw",
    ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9912422),
    ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28881),
    ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1648877),
    ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4542),
)
_EMNIST_PARTS = [
    f"emnist-{split}-{part}-{kind}-ubyte.gz"
    for split in ("byclass", "bymerge", "balanced", "letters", "digits", "mnist")
    for part in ("train", "test")
    for kind in ("images-idx3", "labels-idx1")
]
_LEAF = 'S. Caldas et al., "LEAF: A benchmark for federated settings", arXiv:1812.01097, 2018'
_NIST = "none stated (NIST)"

_ALL = (
    Entry(
        "digits",
        "Optical recognition of handwritten digits, the test part",
        "digits, 8x8",
        "1,797",
        "CC BY 4.0",
        'E. Alpaydin & C. Kaynak, "Optical recognition of handwritten digits", UCI machine learning repository, 1998',
        note="Installed with scikit-learn: there is nothing to download.",
    ),
    Entry(
        "mnist",
        "MNIST database of handwritten digits",
        "digits, 28x28",
        "60,000 + 10,000",
        "CC BY-SA 3.0",
        'Y. LeCun, L. Bottou, Y. Bengio & P. Haffner, "Gradient-based learning applied to document recognition", '
        "Proceedings of the IEEE 86(11), 1998",
        _MNIST,
    ),
    Entry(
        "fashion_mnist",
        "Fashion-MNIST",
        "clothing, 28x28",
        "60,000 + 10,000",
        "MIT",
        'H. Xiao, K. Rasul & R. Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning '
        'algorithms", arXiv:1708.07747, 2017',
        _plain(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "FashionMNIST/raw",
            ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26421880),
            ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29515),
            ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4422102),
            ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5148),
        ),
    ),
    Entry(
        "emnist",
        "EMNIST: digits and letters, without their writers",
        "characters, 28x28",
        "697,932 + 116,323",
        _NIST,
        'G. Cohen, S. Afshar, J. Tapson & A. van Schaik, "EMNIST: an extension of MNIST to handwritten letters", '
        "arXiv:1702.05373, 2017",
        (
            File(
                "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                "EMNIST/raw/gzip.zip",
                md5="58c8d27c78d21e728a6bc7b3cc06412e",
                bytes=561753746,
                unpack=True,
                members=tuple(Member(f"gzip/{name}", f"EMNIST/raw/{name}") for name in _EMNIST_PARTS),
            ),
        ),
        note="Six splits of the same characters; the numbers are of the one by class.",
    ),
    Entry(
        "qmnist",
        "QMNIST: who wrote each digit of MNIST",
        "digits, 28x28",
        "60,000 + 10,000",
        "BSD-3-Clause",
        'C. Yadav & L. Bottou, "Cold case: the lost MNIST digits", NeurIPS 2019',
        _plain(
            "https://raw.githubusercontent.com/facebookresearch/qmnist/master",
            "qmnist",
            ("qmnist-train-labels-idx2-int.gz", "0058f8dd561b90ffdd0f734c6a30e5e4", 463024),
            ("qmnist-test-labels-idx2-int.gz", "5b5b05890a5e13444e108efe57b788aa", 526800),
        )
        + _MNIST,
        note="The labels name the writers of MNIST's digits, in MNIST's order; the images are MNIST's (CC BY-SA 3.0).",
    ),
    Entry(
        "cifar10",
        "CIFAR-10",
        "photographs, 3x32x32",
        "50,000 + 10,000",
        "none stated; cite it",
        'A. Krizhevsky, "Learning multiple layers of features from tiny images", technical report, 2009',
        _cifar(
            "cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            170498071,
            "cifar-10-batches-py",
            data_batch_1="c99cafc152244af753f735de768cd75f",
            data_batch_2="d4bba439e000b95fd0a9bffe97cbabec",
            data_batch_3="54ebc095f3ab1f0389bbae665268c751",
            data_batch_4="634d18415352ddfa80567beed471001a",
            data_batch_5="482c414d41f54cd18b22e5b47cb7c3cb",
            test_batch="40351d587109b95175f43aff81a1287e",
        ),
    ),
    Entry(
        "cifar100",
        "CIFAR-100",
        "photographs, 3x32x32",
        "50,000 + 10,000",
        "none stated; cite it",
        'A. Krizhevsky, "Learning multiple layers of features from tiny images", technical report, 2009',
        _cifar(
            "cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            169001437,
            "cifar-100-python",
            train="16019d7e3df5f24257cddd939b257f8d",
            test="f0ef6b0ae62326f3e7ffdfab6717acfc",
        ),
    ),
    Entry(
        "femnist",
        "FEMNIST of LEAF: handwritten characters by writer",
        "characters, 28x28",
        "805,263 of 3,550 writers",
        _NIST,
        _LEAF,
        note="There is no download: clone https://github.com/TalwalkarLab/leaf, run "
        "`./preprocess.sh -s niid --sf 1.0 -k 0 -t sample` in its data/femnist, and copy the folders data/train and "
        "data/test it makes to femnist/data/train and femnist/data/test in the data folder. fed_emnist is almost the "
        "same data, ready made.",
        by_hand=("femnist/data/train/*.json", "femnist/data/test/*.json"),
    ),
    Entry(
        "femnist_digits",
        "Digits of 190 writers of FEMNIST",
        "digits, 28x28",
        "18,544 of 190 writers",
        _NIST,
        _LEAF,
        note="There is no official download: it is an excerpt of FEMNIST in one NumPy file with images [n, 28, 28], "
        "labels [n] and writer [n]; put it into the data folder as femnist_digits_190writers.npz.",
        by_hand=("femnist_digits_190writers.npz",),
    ),
    Entry(
        "fed_emnist",
        "Federated EMNIST of TensorFlow Federated: handwritten characters by writer",
        "characters, 28x28",
        "749,068 of 3,400 writers",
        _NIST,
        _LEAF + "; packed by the TensorFlow Federated authors, 2019",
        (
            File(
                "https://storage.googleapis.com/tff-datasets-public/fed_emnist.tar.bz2",
                "fed_emnist/fed_emnist.tar.bz2",
                sha256="fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
                unpack=True,
                members=tuple(
                    Member(f"fed_emnist_{part}.h5", f"fed_emnist/fed_emnist_{part}.h5") for part in ("train", "test")
                ),
            ),
        ),
        note="Each writer's characters are split: 671,585 to train on, 77,483 to test. Reading it takes h5py.",
    ),
    Entry(
        "har",
        "Human activity recognition using smartphones",
        "motion sensors, 9x128",
        "10,299 of 30 people",
        "CC BY 4.0, see note",
        'D. Anguita, A. Ghio, L. Oneto, X. Parra & J. L. Reyes-Ortiz, "A public domain dataset for human activity '
        'recognition using smartphones", ESANN 2013',
        (
            File(
                "https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip",
                "UCI HAR Dataset.zip",
                sha256="2045e435c955214b38145fb5fa00776c72814f01b203fec405152dac7d5bfeb0",
                bytes=60999314,
                unpack=True,
                members=_har_members(),
            ),
        ),
        note="UCI lists it under CC BY 4.0; the README in the archive forbids commercial use.",
        by_hand=("uci_har_30subjects.npz.xz",),
    ),
    Entry(
        "heart",
        "Heart disease: patients of four hospitals",
        "patients, 13 features",
        "920 of 4 hospitals",
        "CC BY 4.0",
        "A. Janosi (Budapest), W. Steinbrunn (Zurich), M. Pfisterer (Basel) & R. Detrano (Long Beach and Cleveland), "
        '"Heart disease", UCI machine learning repository, 1988',
        _plain(
            "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease",
            "heart_disease",
            ("processed.cleveland.data", "2d91a8ff69cfd9616aa47b59d6f843db", 18461),
            ("processed.hungarian.data", "22e96bee155b5973568101c93b3705f6", 10263),
            ("processed.switzerland.data", "9a87f7577310b3917730d06ba9349e20", 4109),
            ("processed.va.data", "4249d03ca7711e84f4444768c9426170", 6737),
        ),
        note="Its authors ask that the four investigators be named in any publication.",
    ),
    Entry(
        "shakespeare",
        "Tiny Shakespeare",
        "plays, as characters",
        "1,115,394 characters",
        "public domain",
        'A. Karpathy, "The unreasonable effectiveness of recurrent neural networks", 2015 (char-rnn)',
        (
            File(
                "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
                "tinyshakespeare.txt.gz",
                sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                bytes=1115394,
                compress=True,
            ),
        ),
    ),
)

ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _ALL}


def entry(name: str) -> Entry:
    """The data set of this name, or help for somebody who mistyped it."""
    if name not in ENTRIES:
        raise CloisterError(f"Expected the name of a data set, found {name!r}: {nearest(name, ENTRIES)}.")
    return ENTRIES[name]
