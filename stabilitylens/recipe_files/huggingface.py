from collections.abc import Mapping
from typing import Any

from stabilitylens.recipe_files._convert import decay, number, optimizer, positive, truth, whole
from stabilitylens.recipe_files._dialect import Convert, Dialect, Flat, dialect

#: keys of TrainingArguments, which LLaMA-Factory shares
ARGUMENTS: Mapping[str, tuple[str, Convert]] = {
    "optim": ("optimizer", optimizer),
    "learning_rate": ("lr", number),
    "adam_beta1": ("beta1", decay),
    "adam_beta2": ("beta2", decay),
    "adam_epsilon": ("eps", number),
    "weight_decay": ("weight_decay", number),
    "max_grad_norm": ("max_grad_norm", number),
    "max_steps": ("total_steps", positive),
    "per_device_train_batch_size": ("batch_size", positive),
    "gradient_accumulation_steps": ("grad_accumulation", positive),
}
#: of transformers 5.24
DEFAULTS: Mapping[str, Any] = {
    "optimizer": "AdamW", "lr": 5e-5, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0,
    "max_grad_norm": 1.0, "warmup_steps": 0, "precision": "fp32", "batch_size": 8, "grad_accumulation": 1,
}
SCHEDULE = frozenset({"warmup_steps", "warmup_ratio", "bf16", "fp16"})


def derive(flat: Flat, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Warm-up in steps; precision; decay of embeddings, which the Trainer decays as all weights but biases and norms."""
    decay = fields.get("weight_decay")
    return warm_up(flat, fields.get("total_steps")) | precision(flat) | ({"embedding_weight_decay": decay} if decay else {})


def warm_up(flat: Flat, total: int | None) -> dict[str, Any]:
    """Steps of warm-up: a whole number, or a share of all steps in either key."""
    if not {"warmup_steps", "warmup_ratio"} & set(flat):
        return {}
    steps, ratio = number(flat.get("warmup_steps")) or 0.0, number(flat.get("warmup_ratio")) or 0.0
    share = ratio if not steps else steps
    if steps >= 1 or not share:
        return {"warmup_steps": whole(steps)}
    return {"warmup_steps": round(share * total) if total else None}


def precision(flat: Flat) -> dict[str, Any]:
    """What the forward computes in, and the scaler that comes with fp16; ``auto`` leaves both open."""
    if not {"fp16", "bf16"} & set(flat):
        return {}
    half, brain = truth(flat.get("fp16", False)), truth(flat.get("bf16", False))
    if brain:
        return {"precision": "bf16"}
    if half is None or brain is None:
        return {"precision": None}
    return {"precision": "fp16", "loss_scaling": True} if half else {"precision": "fp32"}


huggingface = dialect(
    Dialect(
        name="huggingface",
        title="Hugging Face TrainingArguments",
        marks=frozenset({"output_dir", "num_train_epochs", "per_device_train_batch_size", "lr_scheduler_type"}),
        table=ARGUMENTS,
        defaults=DEFAULTS,
        derive=derive,
        uses=SCHEDULE,
    )
)
