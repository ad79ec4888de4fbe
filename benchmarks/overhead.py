"""What a lens costs: step time with it over step time without it, in one process, alternating.

    python -m benchmarks.overhead [--pairs 200] [--every 10] [--model llama-4x256]

Three copies of one model train side by side on the same batches, one step each in turn: bare, with a lens,
and bare again. Printed are the ratios of the mean and of the median CPU time of a step, for the lens against
bare and, beside it, for bare against bare, which is what the machine's noise makes of a ratio of one.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import stabilitylens as sl

VOCABULARY = 1024


def llama(layers: int, width: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
            num_attention_heads=max(1, width // 64), attn_implementation="sdpa",
        )
    )  # fmt: skip


def gpt2(layers: int, width: int) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=256, n_embd=width, n_layer=layers, n_head=width // 64)
    return GPT2LMHeadModel(config)


#: model, sequence length, batch
SETTINGS = {
    "llama-4x256": (lambda: llama(4, 256), 128, 8),
    "llama-16x256": (lambda: llama(16, 256), 128, 8),
    "gpt2-12x768": (lambda: gpt2(12, 768), 256, 4),
}


class Loop:
    """One training loop that is stepped from outside."""

    def __init__(self, model: nn.Module, logdir: Path | None, every: int) -> None:
        self.model = copy.deepcopy(model).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.lens = sl.attach(self.model, self.optimizer, logdir, every=every) if logdir else None
        self.seconds: list[float] = []

    def step(self, x: torch.Tensor) -> None:
        began = time.process_time()
        loss = self.model(input_ids=x, labels=x).loss
        loss.backward()
        if self.lens:
            self.lens.grads_ready()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.lens:
            self.lens.step(loss)
        self.seconds.append(time.process_time() - began)


def ratio(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Mean and median of a over those of b, and the half-width of a 95 % interval of the first."""
    pairs = [x / y for x, y in zip(a, b, strict=True)]
    width = 1.96 * statistics.stdev(pairs) / len(pairs) ** 0.5
    return statistics.fmean(a) / statistics.fmean(b), statistics.median(a) / statistics.median(b), width


def bytes_of(logdir: Path) -> int:
    return sum(p.stat().st_size for p in logdir.rglob("*") if p.is_file())


def written_by_a_sample(model: nn.Module, shape: tuple[int, int]) -> tuple[int, int]:
    """Bytes that a sampled step writes beyond an ordinary one, and the array elements in it."""
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(model, Path(folder), every=2)
        sizes = []
        for _ in range(6):
            loop.step(torch.randint(0, VOCABULARY, shape))
            sizes.append(bytes_of(Path(folder)))
        loop.lens.close()
        run = sl.load(folder)
        elements = sum(s.values[-1].size for s in run.values() if s.axes)
    return (sizes[5] - sizes[4]) - (sizes[4] - sizes[3]), elements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--model", choices=SETTINGS, default="llama-4x256")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    make, length, batch = SETTINGS[options.model]
    model = make()
    with tempfile.TemporaryDirectory() as folder:
        loops = [Loop(model, None, 1), Loop(model, Path(folder), options.every), Loop(model, None, 1)]
        for i in range(options.pairs + 10):
            x = torch.randint(0, VOCABULARY, (batch, length))
            for loop in loops if i % 2 else reversed(loops):
                loop.step(x)
        bare, seen, again = (loop.seconds[10:] for loop in loops)
        loops[1].lens.close()
    sampled = [s for i, s in enumerate(seen, start=11) if i % options.every == 0]
    print(f"{options.model}, sequence {length}, batch {batch}, every={options.every}, {len(bare)} pairs, {options.threads} thread")
    print(f"bare step: mean {1e3 * statistics.fmean(bare):.1f} ms, median {1e3 * statistics.median(bare):.1f} ms of CPU time")
    for name, other in (("lens / bare", seen), ("bare / bare", again)):
        mean, median, width = ratio(other, bare)
        print(f"{name}: mean {mean:.3f} (± {width:.3f}), median {median:.3f}")
    print(f"a sampled step over a bare one: mean {statistics.fmean(sampled) / statistics.fmean(bare):.3f}")
    size, elements = written_by_a_sample(model, (batch, length))
    print(f"a sampled step writes {size} bytes more than another, for {elements} array elements: {(size - 4.5 * elements) / 1024:.1f} KB + 4.5 x elements")


if __name__ == "__main__":
    main()
