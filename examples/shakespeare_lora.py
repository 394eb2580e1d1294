"""A small transformer guesses what roles in Shakespeare's plays say next, at epsilon 8 for a role and all its lines.

The model is first trained on roles that are public. The others adapt it in private, by adapters of rank 4 (LoRA) or by
all parameters. Without the text (`cloister data get shakespeare`), sections of Python's manual stand in for roles.

    python examples/shakespeare_lora.py
"""

import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from safetensors.torch import save_file

import cloister as cl
from cloister.data.formats.shakespeare import CLASSES, encode

LENGTH = 32


def manual() -> cl.data.Task:
    """Python's manual by section, in windows of characters that are labeled with those that follow."""
    sections = {name: encode(topics[name])[:330] for name in list(topics)[:40] if len(topics[name]) > 330}
    windows = np.concatenate([ids.reshape(10, LENGTH + 1) for ids in sections.values()])
    x, y, who = windows[:, :-1], windows[:, 1:], np.repeat(list(sections), 10)
    return cl.data.from_arrays(x, y, who, loss="next_token", classes=CLASSES, public_samples=100)


try:
    task, steps, width = cl.data.shakespeare(length=LENGTH, targets="every", public_samples=4000), 800, 64
except cl.CloisterError:
    task, steps, width = manual(), 40, 16
print(task)

# In the open: plain training on the public roles, none of whom is a client.
torch.manual_seed(0)
model = cl.models.char_transformer((LENGTH,), CLASSES, width, every_position=True)
inputs, following = task.public_samples
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(steps):
    rows = torch.randint(len(inputs), (32,))
    optimizer.zero_grad()
    task.loss(model(inputs[rows]), following[rows]).mean().backward()
    optimizer.step()

# In private: everybody takes part in a few rounds, and the noise is calibrated to epsilon 8.
method = cl.methods.dp_fedavg(clip_norm=0.5, lr=1.0, local_steps=3, batch_size=8)
with tempfile.TemporaryDirectory() as place:
    save_file(model.state_dict(), weights := Path(place) / "public.safetensors")
    for name, rank in (("adapters", 4), ("all parameters", None)):
        start = {"model": model, "weights": weights, "lora_rank": rank, "engine": "loop"}
        run = cl.run(method, task, rounds=3, epsilon=8.0, delta=1e-3, **start)
        sent = 4 * sum(p.numel() for p in run.model.parameters() if p.requires_grad)
        print(f"{name:<14}  accuracy {run.accuracy:.4f}, epsilon {run.epsilon:.2f}, {sent:,} bytes sent in a round")
with torch.no_grad():
    guessed = torch.cat([model(some).argmax(-1) for some in task.test_inputs.split(512)])
print(f"{'public alone':<14}  accuracy {(guessed == task.test_labels).float().mean():.4f}")
