"""Real trainers of transformers and TRL with the callback: the step's own loss, gradients before clipping, same weights."""

from __future__ import annotations

import gc

import pytest
import torch
from accelerate import Accelerator
from loops import grad_norm
from training import VOCABULARY, gpt2, llama
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

import stabilitylens as sl
from stabilitylens.hooks.trainers.huggingface import LensCallback


def data(rows=64):
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, VOCABULARY, (12,), generator=generator) for _ in range(rows)]
    return [{"input_ids": x, "labels": x} for x in ids]


class Watching(Trainer):
    """Keeps by hand what a step's loss and gradients were."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.step_losses, self.norms, self._parts = [], [], []

    def training_step(self, model, *args, **kwargs):
        self._parts.append(super().training_step(model, *args, **kwargs).item())
        if self.accelerator.sync_gradients:
            self.step_losses.append(sum(self._parts))
            self.norms.append(grad_norm(model))
            self._parts = []
        return torch.tensor(0.0)


def arguments(folder, **options):
    defaults = {
        "max_steps": 6, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "max_grad_norm": 0.5,
        "report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_steps": 2,
        "lr_scheduler_type": "linear", "warmup_steps": 2,
    }  # fmt: skip
    return TrainingArguments(output_dir=str(folder), **defaults | options)


def fit(folder, observe=True, make=gpt2, kind=Watching, resume=None, callbacks=(), **options):
    set_seed(0)
    lens = [LensCallback(folder / "run", every=1)] if observe else []
    trainer = kind(make(), arguments(folder, **options), train_dataset=data(), callbacks=[*lens, *callbacks])
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer):
    return [p.detach().clone() for p in trainer.model.parameters()]


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_record_is_the_steps_own_and_the_weights_are_the_same(make, accumulate, tmp_path):
    options = {"make": make, "gradient_accumulation_steps": accumulate}
    bare, again = (fit(tmp_path / str(i), False, **options) for i in range(2))
    assert all(map(torch.equal, weights(bare), weights(again)))
    plain = Accelerator.backward
    trainer = fit(tmp_path, **options)
    assert Accelerator.backward is plain
    assert all(map(torch.equal, weights(bare), weights(trainer)))
    run = sl.load(tmp_path / "run")
    assert run["loss"].steps.tolist() == list(range(1, 7))
    assert run["loss"].values == pytest.approx(trainer.step_losses, rel=1e-6)
    assert run["grad_norm"].values == pytest.approx(trainer.norms, rel=1e-5)
    assert run["grad_norm_clipped"].values == pytest.approx([min(n, 0.5) for n in trainer.norms], rel=1e-4)
    assert run["lr"].values == pytest.approx([0, 5e-3, 1e-2, 7.5e-3, 5e-3, 2.5e-3])
    assert run["max_attn_logit"].values.shape == (6, 3, 4)
    assert run.header.recipe.total_steps == 6


def test_a_nan_that_the_trainers_log_hides_is_in_the_record(tmp_path):
    class Poison(TrainerCallback):
        def on_step_begin(self, args, state, control, model, **_):
            if state.global_step == 3:
                model.transformer.wte.weight.data[:] = float("nan")

    trainer = fit(tmp_path, kind=Trainer, callbacks=[Poison()])
    assert all(line["loss"] == line["loss"] for line in trainer.state.log_history if "loss" in line)
    losses = sl.load(tmp_path / "run")["loss"].values
    assert torch.isfinite(torch.tensor(losses)).tolist() == [True, True, True, False, False, False]


def test_resuming_from_a_checkpoint_goes_on_with_the_same_run(tmp_path):
    fit(tmp_path / "whole")
    fit(tmp_path, save_strategy="steps", save_steps=2)
    last = sl.load(tmp_path / "run")["loss"].values
    trainer = fit(tmp_path, save_strategy="steps", save_steps=2, resume=str(tmp_path / "checkpoint-4"))
    run, whole = sl.load(tmp_path / "run"), sl.load(tmp_path / "whole" / "run")
    assert run["loss"].steps.tolist() == list(range(1, 7))
    assert run["loss"].values.tolist() == last.tolist() == whole["loss"].values.tolist()
    assert len(trainer.step_losses) == 2
    assert run["max_attn_logit"].values.tolist() == whole["max_attn_logit"].values.tolist()


def test_evaluation_in_between_is_not_in_the_record(tmp_path):
    def run(folder, **options):
        set_seed(0)
        trainer = Trainer(
            llama(attention_dropout=0.0), arguments(folder, **options), train_dataset=data(), eval_dataset=data(8),
            callbacks=[LensCallback(folder / "run", every=1)],
        )  # fmt: skip
        trainer.train()
        return sl.load(folder / "run")

    clean, evaluated = run(tmp_path / "a"), run(tmp_path / "b", eval_strategy="steps", eval_steps=1)
    for name in ("loss", "resid_rms", "max_attn_logit", "log_z"):
        assert clean[name].values.tolist() == evaluated[name].values.tolist(), name


class Failing(TrainerCallback):
    def on_substep_end(self, args, state, control, **_):
        raise RuntimeError("in the loop")


def test_an_exception_in_the_training_leaves_a_readable_record_and_nothing_behind(tmp_path):
    plain, model = Accelerator.backward, gpt2()
    trainer = Trainer(
        model, arguments(tmp_path, gradient_accumulation_steps=2), train_dataset=data(),
        callbacks=[LensCallback(tmp_path / "run", every=1)],
    )  # fmt: skip
    trainer.add_callback(Failing)
    with pytest.raises(RuntimeError, match="in the loop"):
        trainer.train()
    trainer.remove_callback(Failing)
    trainer.train()  # the same trainer again
    assert Accelerator.backward is plain
    assert sl.load(tmp_path / "run")["loss"].steps.tolist() == list(range(1, 7))
    del trainer
    gc.collect()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_trl_supervised_fine_tuning_with_adapters(tmp_path):
    trl, peft = pytest.importorskip("trl"), pytest.importorskip("peft")
    datasets = pytest.importorskip("datasets")
    set_seed(0)
    rows = datasets.Dataset.from_list([{"input_ids": r["input_ids"].tolist()} for r in data()])
    config = trl.SFTConfig(
        output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=2, report_to="none", use_cpu=True, bf16=False,
        disable_tqdm=True, save_strategy="no", gradient_checkpointing=True, learning_rate=1e-2, max_length=12,
        eos_token=None, pad_token=None, dataset_kwargs={"skip_prepare_dataset": True},
    )  # fmt: skip
    tokenizer = tiny_tokenizer()
    model = llama(attention_dropout=0.0, pad_token_id=0)
    lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    trainer = trl.SFTTrainer(
        model, config, train_dataset=rows, processing_class=tokenizer, peft_config=lora,
        callbacks=[LensCallback(tmp_path / "run", every=1)],
    )  # fmt: skip
    trainer.train()
    run = sl.load(tmp_path / "run")
    assert run["loss"].steps.tolist() == [1, 2, 3, 4]
    assert run["grad_norm"].values.min() > 0
    seen, total = run.header.coverage.parameters
    assert seen == total == 3 * 2 * 2  # two adapters of two matrices in each of three layers
    assert run.header.labels["layer"] == tuple(f"model.layers.{i}" for i in range(3))
    assert run["resid_grad_norm"].values.shape == (4, 3)


def tiny_tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1} | {f"w{i}": i for i in range(2, VOCABULARY)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>")
