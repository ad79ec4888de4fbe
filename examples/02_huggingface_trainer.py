"""One line in the Trainer of Hugging Face transformers: python examples/02_huggingface_trainer.py runs/trainer"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import stabilitylens as sl
from stabilitylens.hooks.trainers.huggingface import LensCallback

folder = sys.argv[1] if len(sys.argv) > 1 else "runs/trainer"
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
)
rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 256, (64, 32))]
arguments = TrainingArguments(folder, per_device_train_batch_size=8, max_steps=12, report_to=[], save_strategy="no", use_cpu=True)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows, callbacks=[LensCallback(folder, every=4)]).train()

print(sl.postmortem(folder).verdict)
