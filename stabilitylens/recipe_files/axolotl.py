from stabilitylens.recipe_files._convert import decay, number, optimizer, positive
from stabilitylens.recipe_files._dialect import Dialect, dialect
from stabilitylens.recipe_files.huggingface import SCHEDULE, derive

axolotl = dialect(
    Dialect(
        name="axolotl",
        title="axolotl",
        marks=frozenset({"base_model", "micro_batch_size", "sequence_len", "sample_packing", "datasets", "val_set_size"}),
        table={
            "optimizer": ("optimizer", optimizer),
            "learning_rate": ("lr", number),
            "adam_beta1": ("beta1", decay),
            "adam_beta2": ("beta2", decay),
            "adam_epsilon": ("eps", number),
            "weight_decay": ("weight_decay", number),
            "max_grad_norm": ("max_grad_norm", number),
            "max_steps": ("total_steps", positive),
            "micro_batch_size": ("batch_size", positive),
            "gradient_accumulation_steps": ("grad_accumulation", positive),
            "sequence_len": ("seq_len", positive),
        },
        defaults={"beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
        derive=derive,
        uses=SCHEDULE,
    )
)
