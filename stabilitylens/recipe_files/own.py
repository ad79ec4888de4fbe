from stabilitylens.recipe_files._convert import decay, number, optimizer, positive, precision, truth, whole, word
from stabilitylens.recipe_files._dialect import Dialect, dialect

own = dialect(
    Dialect(
        name="own",
        title="stabilitylens",
        marks=frozenset(),
        table={
            "optimizer": ("optimizer", optimizer),
            "lr": ("lr", number),
            "beta1": ("beta1", decay),
            "beta2": ("beta2", decay),
            "eps": ("eps", number),
            "weight_decay": ("weight_decay", number),
            "max_grad_norm": ("max_grad_norm", number),
            "warmup_steps": ("warmup_steps", whole),
            "total_steps": ("total_steps", positive),
            "precision": ("precision", precision),
            "loss_scaling": ("loss_scaling", truth),
            "batch_size": ("batch_size", positive),
            "grad_accumulation": ("grad_accumulation", positive),
            "n_devices": ("n_devices", positive),
            "seq_len": ("seq_len", positive),
            "embedding_weight_decay": ("embedding_weight_decay", number),
            "norm_precision": ("norm_precision", precision),
            "param_precision": ("param_precision", precision),
            "scaled_init": ("scaled_init", truth),
            "qk_clip": ("qk_clip", number),
            "task": ("task", word),
            "multimodal": ("multimodal", truth),
        },
        defaults={},
    )
)
