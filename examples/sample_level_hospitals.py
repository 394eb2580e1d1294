"""Four hospitals train one model; any one patient is protected, and nobody has to be trusted.

Every hospital runs DP-SGD (PFL) and adds its own noise before anything leaves it. It has a privacy budget and an
account of its own. The data are scikit-learn's breast cancer set (569 patients), dealt to four hospitals as arrays.

    python examples/sample_level_hospitals.py
"""

import tempfile
from pathlib import Path

import numpy as np
import rich
from sklearn.datasets import load_breast_cancer

import cloister as cl
from cloister.runs.folder import RunFolder
from cloister.runs.report import clients_table

# Each patient is prepared alone, by a fixed function. Means over patients would be a release that nobody has charged.
measured, diagnosis = load_breast_cancer(return_X_y=True)
inputs = (np.log(measured + 0.01) / 4).astype(np.float32)
hospitals = np.random.default_rng(0).choice(["Avon", "Brent", "Clyde", "Dee"], len(inputs), p=[0.4, 0.3, 0.2, 0.1])

task = cl.data.from_arrays(inputs, diagnosis, hospitals, classes=2, name="breast_cancer")
# This lr was chosen by looking at accuracies on these data, which no epsilon covers: the certificate says so.
method = cl.methods.pfl(clip_norm=1.0, lr=0.5, batch_size=32)

with tempfile.TemporaryDirectory() as place:
    run = cl.run(
        method,
        task,
        rounds=20,
        epsilon=[1.0, 1.0, 2.0, 4.0],  # in the order of the hospitals' names; the noise of each is calibrated to it
        delta=1e-3,
        seed=0,
        folder=Path(place) / "run",
    )
    print(f"accuracy {run.accuracy:.3f}; no patient has lost more than epsilon {run.epsilon:.3f} at delta 0.001")
    rich.print(clients_table(RunFolder.open(run.folder)))  # `cloister show RUN --clients` prints the same
