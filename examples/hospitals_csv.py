"""Four hospitals' own files, from a plan to a prediction: any one patient is protected at epsilon 2.

The files are UCI heart disease as it is published (`cloister data get heart`): no header, ? where nothing was measured.
The schema says what the columns are. Its ranges and fills come from textbooks: a statistic of the patients would be a
release. The mean and variance that help the model are one, and have their share of the budget (`standardize`).

    python examples/hospitals_csv.py [FOLDER]

The same on the command line; `cloister data inspect FOLDER` drafts a schema for files of your own:

    cloister run data=FOLDER schema=experiments/heart-schema.toml method=pfl batch_size=32 lr=0.5 rounds=20 epsilon=2 \
        delta=1e-3 standardize=0.05 average=0.8 metrics=accuracy,auroc --folder runs/heart  # `plan` takes the same keys
    cloister predict runs/heart FOLDER/processed.va.data -o predictions.csv --proba
"""

import os
import sys
import tempfile
from pathlib import Path

import cloister as cl

root = Path(__file__).parent.parent
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(os.environ.get("CLOISTER_DATA", "data")) / "heart_disease"
task = cl.data.from_folder(folder, schema=root / "experiments" / "heart-schema.toml")
method = cl.methods.pfl(clip_norm=1.0, lr=0.5, batch_size=32)
privacy = {"rounds": 20, "epsilon": 2.0, "delta": 1e-3, "standardize": 0.05}

print(task)
print(cl.plan(method, task, **privacy))  # before anything is computed: what would it take?

with tempfile.TemporaryDirectory() as place:
    run = cl.run(method, task, **privacy, average=0.8, metrics=["accuracy", "auroc"], folder=Path(place) / "run")
    print(run)
    print(run.client_scores)
    print(run.certificate)

    model = cl.load(run.folder)  # with its preprocessing inside: it takes raw rows
    patient = dict.fromkeys(task.encoder.columns) | {
        "age": 63,
        "sex": 1,
        "cp": 4,
        "thalach": 112,
        "exang": 1,
        "thal": 7,
    }
    print(patient["age"], "years old:", model.predict({name: [value] for name, value in patient.items()})[0])
