from collections.abc import Mapping
from typing import Any

from stabilitylens.recipe_files._convert import decay, number, optimizer, positive, precision, whole
from stabilitylens.recipe_files._dialect import Dialect, Flat, dialect

#: of all parameters alike
DECAY = 0.1


def _derive(flat: Flat, fields: Mapping[str, Any]) -> dict[str, Any]:
    """All parameters are in one group, so embeddings decay as the others; accumulation follows from the global batch."""
    samples, local = positive(flat.get("training.global_batch_size")), fields.get("batch_size")
    devices = positive(flat.get("parallelism.data_parallel_replicate_degree"))
    shards = positive(flat.get("parallelism.data_parallel_shard_degree"))
    ranks = devices * shards if devices and shards else None
    found: dict[str, Any] = {"n_devices": ranks}
    if samples and local and ranks:
        found["grad_accumulation"] = samples // (local * ranks) or None
    return found | {"embedding_weight_decay": fields.get("weight_decay", DECAY)}


torchtitan = dialect(
    Dialect(
        name="torchtitan",
        title="torchtitan",
        marks=frozenset({
            "job.dump_folder", "model.flavor", "training.max_norm", "training.local_batch_size",
            "lr_scheduler.warmup_steps", "training.seq_len", "training.mixed_precision_param",
        }),
        table={
            "optimizer.name": ("optimizer", optimizer),
            "optimizer.lr": ("lr", number),
            "optimizer.beta1": ("beta1", decay),
            "optimizer.beta2": ("beta2", decay),
            "optimizer.eps": ("eps", number),
            "optimizer.weight_decay": ("weight_decay", number),
            "training.max_norm": ("max_grad_norm", number),
            "training.warmup_steps": ("warmup_steps", whole),
            "lr_scheduler.warmup_steps": ("warmup_steps", whole),
            "training.steps": ("total_steps", positive),
            "training.mixed_precision_param": ("precision", precision),
            "training.dtype": ("param_precision", precision),
            "training.batch_size": ("batch_size", positive),
            "training.local_batch_size": ("batch_size", positive),
            "training.seq_len": ("seq_len", positive),
        },
        defaults={
            "optimizer": "AdamW", "lr": 8e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": DECAY,
            "max_grad_norm": 1.0, "warmup_steps": 200, "total_steps": 10_000, "precision": "bf16", "batch_size": 8,
            "seq_len": 2048,
        },
        derive=_derive,
        uses=frozenset({
            "training.global_batch_size", "parallelism.data_parallel_replicate_degree",
            "parallelism.data_parallel_shard_degree",
        }),
        ignored=("job.", "profiling.", "metrics.", "checkpoint.", "comm.", "fault_tolerance."),
    )
)
