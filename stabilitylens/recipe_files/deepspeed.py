from collections.abc import Mapping
from typing import Any

from stabilitylens.recipe_files._convert import decay, number, optimizer, positive, truth, whole
from stabilitylens.recipe_files._dialect import Dialect, Flat, dialect


def _beta(index: int, flat: Flat) -> float | None:
    betas = flat.get("optimizer.params.betas")
    return decay(betas[index]) if isinstance(betas, list | tuple) and len(betas) > index else None


def _derive(flat: Flat, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Both betas; precision; whether fp16 scales its loss (0 is a dynamic scale, 1 is none); devices from the batches."""
    half, brain = truth(flat.get("fp16.enabled")), truth(flat.get("bf16.enabled")) or truth(flat.get("bfloat16.enabled"))
    total, local, accumulation = positive(flat.get("train_batch_size")), fields.get("batch_size"), fields.get("grad_accumulation")
    scaled = number(flat.get("fp16.loss_scale", 0)) != 1.0 if half and not brain else None
    return {
        "beta1": _beta(0, flat),
        "beta2": _beta(1, flat),
        "precision": "bf16" if brain else "fp16" if half else "fp32" if half is False else None,
        "loss_scaling": scaled,
        "n_devices": total // (local * accumulation) or None if total and local and accumulation else None,
    }


deepspeed = dialect(
    Dialect(
        name="deepspeed",
        title="DeepSpeed",
        marks=frozenset({
            "zero_optimization.stage", "train_micro_batch_size_per_gpu", "fp16.enabled", "bf16.enabled", "optimizer.type",
            "gradient_clipping", "scheduler.type",
        }),
        table={
            "optimizer.type": ("optimizer", optimizer),
            "scheduler.params.warmup_max_lr": ("lr", number),
            "optimizer.params.lr": ("lr", number),
            "optimizer.params.eps": ("eps", number),
            "optimizer.params.weight_decay": ("weight_decay", number),
            "gradient_clipping": ("max_grad_norm", number),
            "scheduler.params.warmup_num_steps": ("warmup_steps", whole),
            "scheduler.params.total_num_steps": ("total_steps", positive),
            "train_micro_batch_size_per_gpu": ("batch_size", positive),
            "gradient_accumulation_steps": ("grad_accumulation", positive),
        },
        defaults={},  # whether gradients are clipped by default differs between its versions
        derive=_derive,
        uses=frozenset({
            "optimizer.params.betas", "fp16.enabled", "fp16.loss_scale", "bf16.enabled", "bfloat16.enabled", "train_batch_size",
        }),
        ignored=("zero_optimization.", "fp16.", "activation_checkpointing.", "steps_per_print", "wall_clock_breakdown"),
    )
)
