"""A first private model: the handwritten digits of 300 clients at epsilon 2.

Shows what a run gives back: the test accuracy, the epsilon that was spent, and the certificate.

    python examples/first_private_model.py
"""

import cloister as cl

task = cl.data.digits(clients=300)
method = cl.methods.dp_fedavg(clip_norm=1.0, lr=1.0, local_steps=5)

# The noise is calibrated: 60 rounds spend epsilon 2 and no more. Every client joins a round with probability 0.5.
run = cl.run(method, task, rounds=60, cohort=cl.poisson(0.5), epsilon=2.0, delta=1e-3, seed=0)

print(f"accuracy {run.accuracy:.3f}")
print(f"epsilon {run.epsilon:.3f} at delta 0.001, for a client and all its data")
print(run.certificate)
