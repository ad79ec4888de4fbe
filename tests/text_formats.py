"""What training programs print, in words of our own: each format is a function from a point to its lines."""
# flake8: noqa: B907

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

#: point, its step, its loss -> text
Line = Callable[[int, int, float], str]
POINTS = 40
LOSS = [round(8 * math.exp(-i / 15) + 2 + 0.05 * math.sin(1.7 * i), 4) for i in range(POINTS)]
STEP = [10 * (i + 1) for i in range(POINTS)]
COUNT = list(range(POINTS))


@dataclass(frozen=True)
class Format:
    """A log: its head, its lines, what ends each, and the steps that a reader should find (None: any)."""

    line: Line
    steps: list[int] | None = None
    head: str = ""
    end: str = "\n"

    def text(self) -> str:
        return self.head + "".join(self.line(i, s, x) + self.end for i, s, x in zip(COUNT, STEP, LOSS, strict=True))


def tenth(i: int, text: str) -> str:
    """What is printed after every tenth point, as an evaluation is."""
    return text if i % 10 == 9 else ""


FORMATS: dict[str, Format] = {
    "nanogpt": Format(
        lambda i, s, x: f"iter {s}: loss {x}, time {50 + i}.12ms, mfu 3.21%"
        + tenth(i, f"\nstep {s}: train loss {x + 0.01:.4f}, val loss {x + 0.1:.4f}\nsaving checkpoint to out"),
        STEP, head="Overriding: learning_rate = 0.001\nnumber of parameters: 10.65M\n",
    ),
    "modded_nanogpt": Format(lambda i, s, x: f"step:{s}/5100 train_loss:{x} train_time:{70 * s}ms step_avg:{'nan' if i < 9 else 70.12}ms"
                             + tenth(i, f"\nstep:{s}/5100 val_loss:{x + 0.1:.4f} train_time:{70 * s}ms step_avg:70.12ms"), STEP),
    "nanochat": Format(lambda i, s, x: f"step {s:05d}/16704 ({i:.2f}%) | loss: {x} | lrm: 1.00 | dt: 653.20ms | tok/sec: 802,650 | mfu: 50.17 | epoch: 1", STEP),
    "llmc": Format(lambda i, s, x: f"s:{s} trl:{x} lr:0.000317 norm:0.25" + tenth(i, f"\ns:{s} tel:{x + 0.1:.4f}"), STEP, head="s:0 tel:11.0092\n"),
    "llmc_stdout": Format(lambda i, s, x: f"step {s:4d}/1000 | loss {x} (+0.12z)| norm 0.5012 (-0.31z)| lr 1.00e-04 | 120.12 ms | 40.1% bf16 MFU | 4000 tok/s", STEP),
    "torchtune": Format(lambda i, s, x: f"Step {s} | loss:{x} lr:2e-05 tokens_per_second_per_gpu:512.3 grad_norm:1.{i} ", STEP),
    "torchtitan": Format(
        lambda i, s, x: f"[rank0]:\x1b[32m[titan] 2025-03-12 11:10:{i:02d},511 - root - INFO - \x1b[31mstep: {s:2}  \x1b[32mloss: {x:7.4f}  "
        "\x1b[33mmemory:  1.41GiB(1.79%)  \x1b[34mtps: 193,831  \x1b[36mmfu: 1.86%\x1b[39m", STEP,
    ),
    "olmo": Format(
        lambda i, s, x: f"2024-02-01 12:00:{i:02d}.123\thost:0\tolmo.train:967\tINFO\t[step={s}/739328,epoch=0]\n    optim/total_grad_norm=0.{i + 10}\n"
        f"    train/CrossEntropyLoss={x}\n    train/Perplexity={math.exp(x):,.1f}\n    throughput/total_tokens=4,194,304", STEP,
    ),
    "composer": Format(lambda i, s, x: f"[batch={s}/1000]:\n\t Train time/epoch: 0\n\t Train loss/train/total: {x}\n\t Train lr-DecoupledAdamW/group0: 0.0001", STEP),
    "paddlenlp": Format(lambda i, s, x: f"[2023-06-01 12:00:00,123] [    INFO] - loss: {x}, learning_rate: 1e-05, global_step: {s}, interval_runtime: 1.23", STEP),
    "paddlenlp_old": Format(lambda i, s, x: f"global step {s}, epoch: 0, batch: {s}, loss: {x}, speed: 2.10 step/s", STEP),
    "espnet": Format(lambda i, s, x: f"[host] 2020-11-11 16:36:33,446 (trainer:486) INFO: {1 + i // 10}epoch:train:{i % 10 * 100 + 1}-{i % 10 * 100 + 100}batch: "
                     f"iter_time=0.001, loss_ctc={x + 2:.3f}, loss={x}, lr_0=0.100, train_time=0.014", [100 * (i + 1) for i in COUNT]),
    "speechbrain": Format(lambda i, s, x: f"epoch: {i + 1}, lr: 1.00e-03 - train loss: {x} - valid loss: {x + 0.2:.4f}, valid PER: 30.12", [i + 1 for i in COUNT]),
    "parlai": Format(lambda i, s, x: f"10:00:{i:02d} | time:10s total_exs:1000 epochs:0.01 time_left:1000s\n    clip  ctpb  gnorm  loss    lr   ppl  token_acc  updates\n"
                     f"       1  1234  2.345  {x}  1e-05  12.34  .3456  {s}", STEP),
    "clu": Format(lambda i, s, x: f"I0101 12:00:{i:02d}.123456 140000{i} logging_writer.py:48] [{s}] accuracy=0.1, loss={x}, learning_rate=0.001", STEP),
    "levanter": Format(lambda i, s, x: f"2024-01-01T12:00:00 - 0 - levanter.tracker.console - console.py:47 - INFO :: step:{s} train/loss:{x} grad_norm/total:1.0", STEP),
    "easylm": Format(lambda i, s, x: f"{{'accuracy': 0.12,\n 'gradient_norm': 1.2,\n 'loss': {x},\n 'learning_rate': 0.001,\n 'step': {s}}}", STEP),
    "easydel": Format(lambda i, s, x: f"training process - {{ 'mlperf/execution_time': 0.77,\n  'mlperf/flops': 1154428740.0,\n  'loss': {x},\n  'step': {s}}}", STEP),
    "maxtext": Format(lambda i, s, x: f"completed step: {s}, seconds: 5.670, TFLOP/s/device: 134.856, Tokens/s/device: 5779.6, total_weights: 196608, loss: {x}", STEP),
    "gpt_neox": Format(
        lambda i, s, x: f" samples/sec: 100.123 | iteration {s:8d}/  320000 | elapsed time per iteration (ms): 3000.1 | learning rate: 1.2E-6 | approx flops per GPU: "
        f"4.1TFLOPS | lm_loss: {x:.6E} | loss scale: 4096.0 | number of skipped iterations:   0 | number of nan iterations:   0 |", STEP,
    ),
    "megatron": Format(
        lambda i, s, x: f" iteration {s:8d}/  250000 | consumed samples: {s * 8:12d} | elapsed time per iteration (ms): 4247.9 | learning rate: 2.999E-04 | "
        f"global batch size:     8 | lm loss: {x:.6E} | loss scale: 1.0 | grad norm: 0.{i + 100} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        "time (ms) | forward-compute: 193.77 | backward-compute: 73.02"
        + tenth(i, f"\n validation loss at iteration {s} | lm loss value: {x + 0.1:.6E} | lm loss PPL: 3.281128E+03 | "), STEP,
    ),
    "nemo2": Format(lambda i, s, x: f"Training epoch 0, iteration {s}/1000 | lr: 3e-05 | global_batch_size: 1 | global_step: {s} | reduced_train_loss: {x} | "
                    "train_step_timing in s: 0.03146 | val_loss: 4.106", STEP),
    "nanotron": Format(lambda i, s, x: f"10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: {s} / 378950 | consumed_tokens: 85.8G | elapsed_time_per_iteration_ms: "
                       f"11.5K | lm_loss: {x} | lr: 1e-05 | grad_norm: 1.{i}", STEP),
    "litgpt": Format(lambda i, s, x: f"iter {s} step {s // 80}: loss {x}, iter time: 1106.53ms" + (" (optimizer.step)" if i % 8 == 7 else ""), STEP),
    "mlx": Format(lambda i, s, x: f"Iter {s}: Train loss {x}, Learning Rate 7.000e-05, It/sec 0.999, Tokens/sec 387.7, Trained Tokens {s * 388}, Peak mem 8.104 GB"
                  + tenth(i, f"\nIter {s}: Val loss {x + 0.1:.4f}, Val took 17.177s\nIter {s}: Saved adapter weights to a/{s}_adapters.npz."), STEP),
    "detectron2": Format(lambda i, s, x: f"[04/01 17:30:{i:02d} d2.utils.events]:  eta: 2 days, 12:13:20  iter: {s}  total_loss: {x}  loss_cls: 1.466  "
                         "time: 0.4089  data_time: 0.0023  lr: 0.006394  max_mem: 4237M", STEP),
    "mmcv": Format(lambda i, s, x: f"2020-05-15 14:41:49,633 - mmdet - INFO - Epoch [{1 + i // 10}][{i % 10 * 50 + 50}/500]\tlr: 0.00125, eta: 1 day, 15:06:01, "
                   f"time: 1.870, memory: 6226, loss_rpn_cls: 0.2658, acc: 86.3379, loss: {x}", [50 * (i + 1) for i in COUNT]),
    "mmengine": Format(
        lambda i, s, x: f"2023/08/03 22:09:24 - mmengine - INFO - Epoch(train)  [{1 + i // 10}][ {i % 10 * 50 + 50:3d}/500]  lr: 2.0000e-02  eta: 0:39:15  time: 0.05  "
        f"memory: 2389  grad_norm: 1.1{i}  loss: {x}  loss_rpn_cls: 0.1"
        + tenth(i, "\n2023/08/03 22:09:24 - mmengine - INFO - Epoch(val)  [1][10/10]    coco/bbox_mAP: 0.38  time: 0.1"), [50 * (i + 1) for i in COUNT],
    ),
    "mmengine_iter": Format(lambda i, s, x: f"08/03 22:09:24 - mmengine - INFO - Iter(train) [{s:6d}/160000]  lr: 1.0e-02  eta: 1 day, 0:39:15  time: 0.05  loss: {x}", STEP),
    "metric_logger": Format(lambda i, s, x: f"Epoch: [{i // 10}]  [{i % 10 * 10:>4}/100]  eta: 0:09:56  lr: 0.000100  loss: {x} ({x + 0.3:.4f})  loss_bbox: 0.9725 (1.1510)  "
                            "time: 0.3508  data: 0.0100  max mem: 3050", STEP[:0] or None),
    "timm": Format(lambda i, s, x: f"Train: {i // 10} [{i % 10 * 50:>4d}/500 ({i % 10 * 10:>3.0f}%)]  Loss: {x:.4f} ({x + 0.1:#.3g})  Time: 0.351s,  364.61/s  LR: 1.0e-05"
                   + tenth(i, "\nTest: [   0/48]  Time: 1.5 (1.5)  Loss:   6.9 ( 6.9)  Acc@1:  0.7 ( 0.7)  Acc@5: 1 ( 1)")),
    "imagenet": Format(
        lambda i, s, x: f"Epoch: [{i // 10}][{i % 10 * 10:4d}/100]\tTime  0.5 ( 0.6)\tData  0.0 ( 0.1)\tLoss {x:.4e} ({x + 0.1:.4e})\tAcc@1   0.39 (  0.20)"
        + tenth(i, "\nTest: [ 0/10]\tTime  1 (1)\tLoss 9.0 (9.0)\tAcc@1 1 ( 1)\n *   Acc@1 1.2 Acc@5 3.4"),
    ),
    "yolo": Format(
        lambda i, s, x: f"      {i + 1}/40      2.5G      {x}      1.5      1.1         23        640: 100%|██████████| 8/8 [00:03<00:00,  2.41it/s]\n"
        "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██████████| 4/4 [00:01<00:00,  3.21it/s]\n"
        "                   all        128        929      0.641      0.534      0.607      0.448",
        [i + 1 for i in COUNT], head="\n      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n",
    ),
    "mnist": Format(lambda i, s, x: f"Train Epoch: {1 + i // 10} [{i % 10 * 640}/6400 ({i % 10 * 10}%)]\tLoss: {x:.6f}"
                    + tenth(i, "\n\nTest set: Average loss: 0.1, Accuracy: 9000/10000 (90%)\n")),
    "step_of_epoch": Format(lambda i, s, x: f"Epoch [{1 + i // 10}/5], Step [{i % 10 * 100 + 100}/1000], Loss: {x}", [100 * (i + 1) for i in COUNT]),
    "word_language_model": Format(
        lambda i, s, x: f"| epoch {1 + i // 10:3d} | {i % 10 * 200 + 200:5d}/ 2983 batches | lr 5.00 | ms/batch 12.00 | loss {x:5.4f} | ppl 2065.00"
        + tenth(i, "\n" + "-" * 89 + "\n| end of epoch   1 | time: 40.00s | valid loss  5.90 | valid ppl   360.00\n" + "-" * 89), [200 * (i + 1) for i in COUNT],
    ),
    "transformer_xl": Format(lambda i, s, x: f"| epoch   1 step {s:8d} | {s:6d} batches | lr 0.00025 | ms/batch 500.01 | loss {x} | ppl  2000.1", STEP),
    "xgboost": Format(lambda i, s, x: f"[{i}]\ttrain-logloss:{x}\teval-logloss:{x + 0.1:.4f}", COUNT),
    "caffe": Format(lambda i, s, x: f"I0101 12:00:00.123456  1234 solver.cpp:218] Iteration {s} (1.2 iter/s, 80s/100 iters), loss = {x}\nI0101 12:00:00.123456  1234 "
                    f"solver.cpp:237]     Train net output #0: loss = {x} (* 1 = {x} loss)\nI0101 12:00:00.123456  1234 sgd_solver.cpp:105] Iteration {s}, lr = 0.01", STEP),
    "scikit_learn": Format(lambda i, s, x: f"Iteration {i + 1}, loss = {x}", [i + 1 for i in COUNT]),
    "keras": Format(lambda i, s, x: f"Epoch {i + 1}/40\n100/100 [==============================] - 10s 95ms/step - loss: {x} - accuracy: 0.5 - val_loss: {x + 0.2:.4f}"),
    "keras_quiet": Format(lambda i, s, x: f"Epoch {i + 1}/40\n100/100 - 10s - loss: {x} - accuracy: 0.5 - val_loss: {x + 0.2:.4f} - 10s/epoch - 95ms/step"),
    "keras3": Format(lambda i, s, x: f"Epoch {i + 1}/40\n\x1b[1m100/100\x1b[0m \x1b[32m━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m \x1b[1m1s\x1b[0m 3ms/step - accuracy: 0.1 - loss: {x}"),
    "lightning": Format(lambda i, s, x: f"\rEpoch {i // 10}: {i % 10 * 10:3d}%|███       | {i % 10 + 1}/10 [00:05<00:10,  2.00it/s, v_num=3, train_loss={x}]",
                        head="  | Name  | Type | Params\n------------\n0 | model | GPT | 12.3 M\n", end=""),
    "rich_bar": Format(lambda i, s, x: f"Epoch {i}/39 ━━━━━━━━━━━━━━━ 100/100 0:00:05 • 0:00:00 20.1it/s v_num: 0.000 loss: {x}", COUNT),
    "huggingface": Format(lambda i, s, x: f"\r {i}%|▎  | {s}/2000 [00:10<1:00:00,  1.2s/it]      \r{{'loss': {x}, 'grad_norm': 1.{i}, 'learning_rate': 1e-05, 'epoch': {i / 100:.2f}}}", STEP),
    "huggingface_one_line": Format(
        lambda i, s, x: f"  1%|▎ | {s}/2000 [00:10<1:00:00,  1.2s/it]{{'loss': {x}, 'grad_norm': 1.{i}, 'learning_rate': 1e-05, 'epoch': {i / 100:.2f}}}", STEP, end="",
    ),
    "huggingface_bar_behind": Format(lambda i, s, x: f"{{'loss': {x}, 'learning_rate': 1e-05, 'epoch': {i / 100:.2f}}}            1%|▏ | {s}/2000 [00:10<1:00:00,  1.2s/it]", STEP),
    "trl": Format(lambda i, s, x: f"{{'loss': '{x}', 'grad_norm': '1.{i}', 'learning_rate': '1e-05', 'epoch': '{i / 100:.2f}'}}"),
    "llamafactory": Format(lambda i, s, x: f"[INFO|2024-05-01 12:00:00] llamafactory.train.callbacks:157 >> {{'loss': {x}, 'learning_rate': 1.0e-05, 'epoch': {i / 100:.2f}}}",
                           head="[INFO|trainer.py:2135] 2024-05-01 12:00:00,123 >>   Num examples = 1,000\n"),
    "swift": Format(lambda i, s, x: f"{{'loss': {x}, 'acc': 0.5, 'epoch': 0.01, 'global_step/max_steps': '{s}/2000', 'percentage': '1.00%', 'elapsed_time': '1m 2s'}}"),
    "marian": Format(lambda i, s, x: f"[2018-01-01 10:00:{i:02d}] Ep. 1 : Up. {s} : Sen. {s * 64:,} : Cost {x} * 1,234 @ 12 after 123,456 : Time 10.0s : 123.00 words/s : L.r. 3.0e-04"
                     + tenth(i, f"\n[2018-01-01 10:00:00] [valid] Ep. 1 : Up. {s} : cross-entropy : 123.4 : new best"), STEP),
    "opennmt": Format(lambda i, s, x: f"[2019-01-01 10:00:00,001 INFO] Step {s}/100000; acc:   3.79; ppl: 10231.31; xent: {x}; lr: 0.00001; 3456/3456 tok/s;    12 sec", STEP),
    "fairseq": Format(
        lambda i, s, x: f"2021-01-01 12:00:00 | INFO | train_inner | epoch 001:    {s} / 1000 loss={x}, nll_loss=9.8, ppl=900, num_updates={s}, lr=1e-05, gnorm=2.{i}"
        + tenth(i, f"\n2021-01-01 12:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9.1 | ppl 3 | num_updates {s}\n"
                f"2021-01-01 12:00:00 | INFO | train | epoch 001 | loss 9.123 | nll_loss 8 | ppl 3 | num_updates {s} | lr 1e-05 | gnorm 1"), STEP,
    ),
    "fairseq_old": Format(
        lambda i, s, x: f"| epoch {1 + i // 10:03d}:    {i % 10 * 100} / 1000 loss={x}, nll_loss=9.8, ppl=900, bsz=8, num_updates={s}, lr=1e-05, gnorm=2.{i}"
        + tenth(i, f"\n| epoch 001 | loss 9.123 | nll_loss 8 | ppl 3 | num_updates {s} | lr 1e-05\n| epoch 001 | valid on 'valid' subset | loss 9.1 | num_updates {s}"), STEP,
    ),
    "fairseq_json": Format(
        lambda i, s, x: f'[2022-04-08 18:48:05,372][train_inner][INFO] - {{"epoch": 1, "update": {s / 480:.3f}, "loss": "{x}", "num_updates": "{s}", "lr": "3e-06", "gnorm": "1.4{i}"}}'
        + tenth(i, f'\n[2022-04-08 18:58:04,035][valid][INFO] - {{"epoch": 1, "valid_loss": "6.389", "valid_num_updates": "{s}"}}\n'
                f'[2022-04-08 18:58:06,786][train][INFO] - {{"epoch": 1, "train_loss": "7.864", "train_num_updates": "{s}"}}'), STEP,
    ),
    "stable_baselines": Format(
        lambda i, s, x: "-" * 40 + f"\n| rollout/              |          |\n|    ep_len_mean        | 12       |\n| time/                 |          |\n"
        f"|    total_timesteps    | {s}     |\n| train/                |          |\n|    loss               | {x}    |\n" + "-" * 40,
    ),
    "fastai": Format(lambda i, s, x: f"{i}         {x}    {x + 0.1:.4f}    0.9       00:12     ", COUNT, head="epoch     train_loss  valid_loss  accuracy  time    \n"),
    "table": Format(lambda i, s, x: f"{s:4d}   {x:.4f}   1.0e-4   0.{i + 10}", STEP, head="some words first\nstep   loss      lr        gnorm\n"),
    "chainer": Format(
        lambda i, s, x: f"\x1b[J{i // 10:<10}  {s:<10}  {x:<10.4f}                         {10 * i:<10}\n\x1b[J     total [...............]  0.00%\n"
        "this epoch [...........]  0.21%\n       100 iter, 0 epoch / 100 epochs\n       inf iters/sec. Estimated time to finish: 0:00:00.\x1b[4A",
        STEP, head="epoch       iteration   main/loss   validation/main/loss  elapsed_time\n",
    ),
    "logfmt": Format(lambda i, s, x: f'time="2020-01-01T00:00:00Z" level=info msg="train" step={s} loss={x} lr=0.001', STEP),
    "loguru": Format(lambda i, s, x: f"2022-07-20 10:00:00.123 | INFO     | __main__:train:123 - step {s} loss {x} lr 0.001", STEP),
    "bracket_pair": Format(lambda i, s, x: f"[{1 + i // 10}, {i % 10 * 2000 + 2000:5d}] loss: {x:.4f}"),
    "counter_behind": Format(lambda i, s, x: (f"Epoch {1 + i // 10}\n-------\n" if i % 10 == 0 else "") + f"loss: {x:>7f}  [{i % 10 * 6400 + 64:>5d}/60000]"),
    "epoch_blocks": Format(lambda i, s, x: f"Epoch {i + 1}/40\n----------\ntrain Loss: {x} Acc: 0.5\nval Loss: {x + 0.1:.4f} Acc: 0.4\n", [i + 1 for i in COUNT]),
    "step_blocks": Format(lambda i, s, x: f"Step: {s}\nLoss: {x}\nGrad norm: 1.{i}\nLR: 0.001", STEP),
    "loss_alone": Format(lambda i, s, x: f"loss: {x}", COUNT),
    "tensor": Format(lambda i, s, x: f"epoch {i} loss tensor({x}, device='cuda:0', grad_fn=<MeanBackward0>)", COUNT),
    "sentence": Format(lambda i, s, x: f"After {s} steps, the training loss is {x} and the learning rate is 0.001.", STEP),
    "loss_at_step": Format(lambda i, s, x: f"Loss at step {s}: {x}", STEP),
    "step_in_name": Format(lambda i, s, x: f"Training loss {s}: {x}", STEP),
    "bare_step": Format(lambda i, s, x: f"{s} | loss {x} | lr 9.000000e-04 | 7367.57ms" + tenth(i, f"\nstep {s}: train loss {x + 0.1:.4f}, val loss {x + 0.2:.4f}"), STEP),
    "value_first": Format(lambda i, s, x: f"INFO:tensorflow:loss = {x}, step = {s} (116.492 sec)", STEP),
    "gluon": Format(lambda i, s, x: f"INFO:root:Epoch[0] Batch [{s}]\tSpeed: 1234.5 samples/sec\tcross-entropy={x}", STEP),
    "fasttext": Format(lambda i, s, x: f"\rProgress: {i:5.1f}% words/sec/thread: 12345 lr: 0.05 avg.loss: {x} ETA:   0h 0m 5s", COUNT, end=""),
    "icefall": Format(
        lambda i, s, x: f"2023-01-01 12:00:00,123 INFO [train.py:873] Epoch 1, batch {s}, loss[loss={x}, simple_loss=0.5, over 1234.00 frames. ], "
        f"tot_loss[loss={x + 0.05:.4f}, simple_loss=0.4, over 12345.12 frames. ], batch size: 12, lr: 5.00e-02, grad_scale: 8.0", STEP,
    ),
    "wenet": Format(lambda i, s, x: f"2023-01-01 12:00:00,123 DEBUG TRAIN Batch 0/{s} loss {x} loss_att 12.3 loss_ctc 23.4 lr 0.0001 rank 0"),
    "flax": Format(lambda i, s, x: f"Step... ({s} | Loss: {x}, Learning Rate: 9.9e-05)", STEP),
    "llama_recipes": Format(lambda i, s, x: f"\rTraining Epoch: 1/1, step {i}/40 completed (loss: {x}):  10%|█ | {i + 1}/40 [00:10<01:00,  1.2s/it]", COUNT, end=""),
    "verl": Format(lambda i, s, x: f"(main_task pid=1234) step:{s} - global_seqlen/min:1234.000 - actor/pg_loss:{x} - actor/grad_norm:0.{i + 10} - actor/lr:0.000", STEP),
    "open_clip": Format(lambda i, s, x: f"2023-10-01,12:00:00 | INFO | Train Epoch: 0 [{s * 1024:>8}/1000000 ({i}%)] Loss: {x} ({x + 0.05:.4f}) Data (t): 0.1 LR: 0.0001",
                        [1024 * s for s in STEP]),
    "bigdl": Format(
        lambda i, s, x: f"2017-08-20 16:11:38 INFO  DistriOptimizer$:295 - [Epoch 64 {s * 1792}/1281167][Iteration {s}][Wall Clock 197331.83s] Train 1792 in 4.38seconds. "
        f"Throughput is 408.40378 records/second. Loss is {x}. Current learning rate is 0.0462.", STEP,
    ),
    "rwkv": Format(lambda i, s, x: f"miniE {i + 1} s {s} prog 20.00% : ppl 5.{40 + i} loss {x} lr 3.330213e-04: 100%|██████████| 833/833 [03:21<00:00,  4.13it/s]", COUNT),
    "paddleocr": Format(lambda i, s, x: f"[2023/10/09 10:49:12] ppocr INFO: epoch: [9/20], global_step: {s}, lr: 0.000516, acc: 0.0, CTCLoss: 1.5, loss: {x}, "
                        "avg_reader_cost: 0.00013 s, ips: 423.98978 samples/s, eta: 2 days, 17:48:30", STEP),
    "records_on_one_line": Format(lambda i, s, x: f"[2021/06/30 12:24:47] root INFO: epoch: [1/500], iter: {s}, lr: 0.001000, loss: {x}, ips: 46.57236 ", STEP, end=" "),
    "yolox": Format(lambda i, s, x: f"2021-08-02 15:19:14 | INFO     | yolox.core.trainer:254 - epoch: 1/300, iter: {s}/1610, mem: 8760Mb, iter_time: 0.349s, "
                    f"total_loss: {x}, iou_loss: 4.6, lr: 7.716e-07, size: 640, ETA: 4:40:37", STEP),
    "darknet": Format(lambda i, s, x: f" {s}: 47.876884, {x} avg loss, 0.005220 rate, 21.247497 seconds, 1475072 images, 978.731018 hours left\nLoaded: 0.000052 seconds", STEP),
    "one_value_a_line": Format(lambda i, s, x: f"2020-09-10 11:52:14,447 (base_trainer:831) INFO: (Step: {s}) train_loss = {x}.\n"
                               f"2020-09-10 11:52:14,448 (base_trainer:831) INFO: (Step: {s}) train_f0 = 0.0659.", STEP),
    "wrapped": Format(lambda i, s, x: f"2020-05-15 14:41:49,633 - INFO - Epoch [1][{s}/2500]    lr: 0.00125, eta: 1 day, 15:06:01, loss_cls: 0.3341\n loss_mask: 0.5561, loss: {x}", STEP),
}  # fmt: skip
