from stabilitylens.recipe_files._convert import positive
from stabilitylens.recipe_files._dialect import Dialect, dialect
from stabilitylens.recipe_files.huggingface import ARGUMENTS, DEFAULTS, SCHEDULE, derive

llama_factory = dialect(
    Dialect(
        name="llama_factory",
        title="LLaMA-Factory",
        marks=frozenset({"finetuning_type", "cutoff_len", "stage", "template", "do_train", "dataset_dir", "lora_target"}),
        table={**ARGUMENTS, "cutoff_len": ("seq_len", positive)},
        defaults=DEFAULTS,
        derive=derive,
        uses=SCHEDULE,
    )
)
