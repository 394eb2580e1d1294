"""Words that keys and options take, where their type does not say so. A test compares them with the sources."""

from __future__ import annotations

_METRICS = (
    *("accuracy", "balanced_accuracy", "f1", "precision", "recall", "auroc", "average_precision", "perplexity"),
    *("mae", "mse", "rmse", "r2", "concordance", "loss"),
)

KEYS: dict[str, tuple[str, ...]] = {
    "device": ("cpu", "cuda"),
    "dtype": ("float32", "float64"),
    "engine": ("auto", "loop", "vectorized", "graphed", "compiled"),
    "precision": ("exact", "tf32", "bf16"),
    "log": ("csv", "tensorboard", "mlflow", "wandb"),
    "record": (*("norms", "clipping", "gradients", "cosine", "signal", "sparsity", "train", "clients"), "thresholds"),
    "metrics": _METRICS,
    "monitor": _METRICS,
}
FILES = ("weights", "schema", "test_file")
"""Keys whose values are files."""

OPTIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("audit", "--kind"): ("worst_case", "one_run", "one_shot", "all"),
    ("attack", "--kind"): ("inversion", "membership", "all"),
    ("export", "--format"): ("onnx", "torchscript", "safetensors"),
    ("show", "--of"): (
        *("score", "loss", "norms", "clipping", "gradients", "cosine", "signal", "sparsity", "thresholds"),
    ),
    ("tune", "--on"): ("public", "simulated", "private"),
    ("tune", "--distribution"): ("geometric", "logarithmic", "poisson"),
    ("reproduce", "--scale"): ("full", "here", "small", "tiny"),
    ("reproduce", "--jobs"): ("auto",),
    ("compare", "--jobs"): ("auto",),
}
