"""Survival with breast cancer, learned by six regions; any one patient is protected, and nobody has to be trusted.

The data are TCGA-BRCA as FLamby has them (brca.csv and centers.csv; 1,088 patients). A patient's region follows from
the tissue source site in the patient's id. How long patients live is learned as hazards of intervals that are declared
in advance, a loss for every patient alone.

    CLOISTER_DATA=data python examples/survival_six_regions.py
    python examples/survival_six_regions.py FOLDER
"""

import os
import sys
from pathlib import Path

import pandas as pd

import cloister as cl
from cloister.client.losses import hazards

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(os.environ.get("CLOISTER_DATA", "data")) / "tcga_brca"
patients = pd.read_csv(folder / "brca.csv")
sites = pd.read_csv(folder / "centers.csv", keep_default_na=False)  # one of the codes is NA
region = patients["pid"].str.split("-").str[1].map(dict(zip(sites["TSS Code"], sites["Region"], strict=True)))
patients, region = patients[region != "Other"], region[region != "Other"]  # eight patients, of no region

inputs = patients.drop(columns=["pid", "E", "T"]).astype("float32")
inputs["age_at_index"] = (inputs["age_at_index"] - 60) / 15  # constants that are declared, not means of these patients
task = cl.data.from_arrays(
    inputs.to_numpy(),
    patients[["T", "E"]].to_numpy("float32"),  # a time in days, and whether the patient died then
    region.to_list(),
    loss=hazards([365, 730, 1095, 1825, 3650]),  # loss="cox" compares patients: for methods that protect clients
    name="tcga_brca",
)
print(task)

for epsilon in (None, 4.0):
    # This lr was chosen by looking at scores on these data, which no epsilon covers: the certificate says so.
    noise = {"noise_multiplier": 0.0} if epsilon is None else {}
    method = cl.methods.pfl(clip_norm=1.0, lr=0.2, batch_size=64, **noise)
    run = cl.run(method, task, rounds=15, epsilon=epsilon, delta=1e-4, seed=0)
    reached = run.scores["concordance"]
    print(f"concordance {reached:.3f} on patients held out, epsilon {run.epsilon:.3f} at delta 0.0001")
    print(run.client_scores)  # by region; exact, and so not private
print(run.certificate)
