"""Three methods at equal epsilon: DP-FedAvg, DP-FedSAM and Fed-SMP on the digits of 300 clients.

All are charged by one accountant, so their accuracies can be compared. This is one seed of a small model: it shows how
to compare, not which method is best. `cloister compare FILE.toml` does the same from a file, and draws a plot.

    python examples/compare_methods.py
"""

import cloister as cl

task = cl.data.digits(clients=300)
local = {"lr": 1.0, "local_steps": 5}
methods = [
    cl.methods.dp_fedavg(clip_norm=1.0, **local),
    cl.methods.dp_fedsam(clip_norm=1.0, sam="plain", rho=0.05, **local),
    cl.methods.fed_smp_rand_k(clip_norm=1.0, keep_fraction=0.4, **local),
]

print(f"{'method':<16} {'accuracy':>8} {'epsilon':>8} {'noise':>6}")
for method in methods:
    run = cl.run(method, task, rounds=30, cohort=cl.poisson(0.5), epsilon=4.0, delta=1e-3, seed=0)
    noise = run.certificate.noise_multiplier
    print(f"{method.name:<16} {run.accuracy:>8.3f} {run.epsilon:>8.3f} {noise:>6.2f}")
