from stabilitylens.recipe_files._convert import decay, number, optimizer, positive, precision, whole
from stabilitylens.recipe_files._dialect import Dialect, dialect

nanotron = dialect(
    Dialect(
        name="nanotron",
        title="nanotron",
        marks=frozenset({
            "optimizer.clip_grad", "optimizer.optimizer_factory.name", "tokens.micro_batch_size", "tokens.train_steps",
            "optimizer.learning_rate_scheduler.learning_rate", "parallelism.dp",
        }),
        table={
            "optimizer.optimizer_factory.name": ("optimizer", optimizer),
            "optimizer.learning_rate_scheduler.learning_rate": ("lr", number),
            "optimizer.optimizer_factory.adam_beta1": ("beta1", decay),
            "optimizer.optimizer_factory.adam_beta2": ("beta2", decay),
            "optimizer.optimizer_factory.adam_eps": ("eps", number),
            "optimizer.weight_decay": ("weight_decay", number),
            "optimizer.clip_grad": ("max_grad_norm", number),
            "optimizer.learning_rate_scheduler.lr_warmup_steps": ("warmup_steps", whole),
            "tokens.train_steps": ("total_steps", positive),
            "model.dtype": ("precision", precision),
            "tokens.micro_batch_size": ("batch_size", positive),
            "tokens.batch_accumulation_per_replica": ("grad_accumulation", positive),
            "parallelism.dp": ("n_devices", positive),
            "tokens.sequence_length": ("seq_len", positive),
        },
        defaults={},
        ignored=("checkpoints.", "data_stages", "general.", "logging.", "profiler", "tokenizer.", "model.model_config."),
    )
)
