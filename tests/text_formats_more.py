"""More of what training programs print, in words of our own: other languages, other signs, sums of epochs between steps."""
# flake8: noqa: B907

from __future__ import annotations

import math

from text_formats import POINTS, STEP, Format

BAR = "0:00:10<0:10:00"
EPOCHS = [i + 1 for i in range(POINTS)]


def tenth(i: int, text: str) -> str:
    return text if i % 10 == 9 else ""


def thousands(step: int) -> str:
    return f"{step / 1000:g}K" if step >= 1000 else str(step)


MORE: dict[str, Format] = {
    "mindspore": Format(lambda i, s, x: f"epoch: {1+i//10} step: {i%10*100+1}, loss is {x}", None),
    "mindformers": Format(lambda i, s, x: f"2024-01-01 12:00:{i:02d},123 - mindformers[mindformers/core/callback/callback.py:489] - INFO - {{ Epoch:[  1/  2], step:[{s:5d}/ 1000], loss:{x:6.3f}, per_step_time:{100+i}ms, lr:1e-05, overflow cond: False, loss_scale: 65536.0, global_norm: [1.2{i}], train_throughput_per_npu: 10.0T", STEP),
    "chinese1": Format(lambda i, s, x: f"第 {1+i//10} 轮, 第 {s} 步, 损失: {x}, 学习率: 1e-4", STEP),
    "chinese2": Format(lambda i, s, x: f"2024-01-01 12:00:{i:02d} [信息] 轮次 1/3 | 步数 {s}/400 | 训练损失: {x} | 验证损失: {x+.1:.4f} | 耗时 1.2秒", STEP),
    "chinese3": Format(lambda i, s, x: f"轮次：1，步骤：{s}，loss：{x}，准确率：0.5", STEP),
    "chinese_epoch": Format(lambda i, s, x: f"Epoch {i+1}/40 训练损失: {x} 验证损失: {x+.1:.4f} 准确率: 50.12%", EPOCHS),
    "russian": Format(lambda i, s, x: f"Эпоха 1/3, шаг {s}/400, потери: {x}, lr: 1e-4", STEP),
    "russian2": Format(lambda i, s, x: f"[Шаг {s}] Функция потерь: {x}", STEP),
    "russian_epoch": Format(lambda i, s, x: f"Эпоха {i+1}: loss на обучении = {x}, loss на валидации = {x+.1:.4f}", EPOCHS),
    "korean": Format(lambda i, s, x: f"에폭 {i+1}/40 - 손실: {x} - 검증 손실: {x+.1:.4f}", EPOCHS),
    "japanese": Format(lambda i, s, x: f"エポック {i+1}/40 損失: {x} 検証損失: {x+.1:.4f}", EPOCHS),
    "spanish": Format(lambda i, s, x: f"Época {i+1}/40 - Pérdida: {x} - Pérdida de validación: {x+.1:.4f}", EPOCHS),
    "french": Format(lambda i, s, x: f"Époque {i+1}/40, perte entraînement : {x}, perte validation : {x+.1:.4f}", EPOCHS),
    "german": Format(lambda i, s, x: f"Epoche {i+1}/40: Verlust {x}, Validierungsverlust {x+.1:.4f}", EPOCHS),
    "lerobot": Format(lambda i, s, x: f"INFO 2024-10-01 12:00:{i:02d} train.py:212 step:{thousands(500 * (i + 1))} smpl:{thousands(4000 * (i + 1))} ep:{i} epch:{i/40:.2f} loss:{x:.3f} grdn:1.2{i:02d} lr:1.0e-05 updt_s:0.109 data_s:0.001", None),
    "euro": Format(lambda i, s, x: f"Schritt {s}: loss {str(x).replace('.',',')} lr 0,0001", None),
    "euro2": Format(lambda i, s, x: f"step: {s}; loss: {x:.4f}; lr: 0.0001".replace(".",","), STEP),
    "deepspeed_chat": Format(lambda i, s, x: f"Epoch: 0, Step: {s}, Rank: 0, loss = {x}", STEP),
    "deepspeed_ppo": Format(lambda i, s, x: f"Epoch: 0 | Step: {s} | PPO Epoch: 1 | Actor Loss: {x} | Critic Loss: 0.1{i} | Unsupervised Loss: 0.0", STEP),
    "internlm": Format(lambda i, s, x: f"2023-07-07 12:29:{i:02d},353\tINFO train.py:323 in record_current_batch_training_metrics -- tflops=189.3,step={s},loss={x},tgs (tokens/gpu/second)=4127.5,lr=1e-6,loss_scale=65536.0,grad_norm={{'0_default': 63.6{i}}},micro_num=4,num_consumed_tokens=131072,inf_nan_skip_batches=0,num_samples_in_batch=2", STEP),
    "tf_od": Format(lambda i, s, x: f"INFO:tensorflow:Step {s} per-step time 0.512s loss={x}", STEP),
    "tf_od2": Format(lambda i, s, x: f"INFO:tensorflow:Step {s} per-step time 0.512s\nI0101 12:00:00.123456 140000 model_lib_v2.py:698] Step {s} per-step time 0.512s\nINFO:tensorflow:{{'Loss/classification_loss': 0.3{i:02d},\n 'Loss/regularization_loss': 0.15,\n 'Loss/total_loss': {x},\n 'learning_rate': 0.1}}", STEP),
    "tf_slim": Format(lambda i, s, x: f"INFO:tensorflow:global step {s}: loss = {x} (0.212 sec/step)", STEP),
    "trax": Format(lambda i, s, x: f"\nStep {s:6d}: Total number of trainable weights: 1000\nStep {s:6d}: Ran 10 train steps in 1.2 secs\nStep {s:6d}: train CrossEntropyLoss |  {x:.8f}\nStep {s:6d}: eval  CrossEntropyLoss |  {x+.1:.8f}", STEP),
    "flair": Format(lambda i, s, x: f"2020-01-01 12:00:{i:02d},123 epoch {1+i//10} - iter {(i%10+1)*10}/100 - loss {x:.8f} - samples/sec: 10.12 - lr: 0.100000"+tenth(i, f"\n2020-01-01 12:00:00,1 ----------\n2020-01-01 12:00:00,1 EPOCH {1+i//10} done: loss {x:.4f} - lr 0.1000000\n2020-01-01 12:00:00,1 DEV : loss {x+.1:.4f} - f1-score (micro avg)  0.5"), None),
    "emoji": Format(lambda i, s, x: f"📉 Step {s} | Loss: {x} | ⏱ 1.2s", STEP),
    "dash": Format(lambda i, s, x: f"Epoch 1/3 - Step {s}/2000 - Loss {x} - LR 1e-4 - 1.2 it/s", STEP),
    "tokens": Format(lambda i, s, x: f"2024-01-01 12:00:{i:02d} step={s} tokens={i+1.2:.1f}M loss={x} ppl={math.exp(x):.1f} lr=3.0e-04 gnorm=1.23 tok/s=12.3k", STEP),
    "loss_first": Format(lambda i, s, x: f"train_loss: {x} | step {s}", STEP),
    "jsonmsg": Format(lambda i, s, x: f'{{"level":"info","ts":"2024-01-01T12:00:{i:02d}Z","msg":"train","step":{s},"loss":{x}}}', STEP),
    "json_in_text": Format(lambda i, s, x: f'2024-01-01 12:00:{i:02d} INFO metrics: {{"step": {s}, "loss": {x}, "lr": 1e-4}}', STEP),
    "json_root": Format(lambda i, s, x: f'INFO:root:{{"train/loss": {x}, "train/step": {s}}}', STEP),
    "numpy": Format(lambda i, s, x: f"{{'loss': np.float32({x}), 'step': {s}}}", STEP),
    "mllog": Format(lambda i, s, x: f':::MLLOG {{"namespace": "", "time_ms": 1700000000{i:03d}, "event_type": "POINT_IN_TIME", "key": "train_loss", "value": {x}, "metadata": {{"file": "/w/train.py", "lineno": 100, "step_num": {s}}}}}', STEP),
    "diffusers": Format(lambda i, s, x: f"\rSteps:  {i}%|█  | {s}/1000 [{BAR},  1.0s/it, lr=1e-5, step_loss={x}]", STEP, end=""),
    "kohya": Format(lambda i, s, x: f"\rsteps:  {i}%|█  | {s}/1000 [{BAR},  1.0s/it, avr_loss={x}]", STEP, end=""),
    "desc_bar": Format(lambda i, s, x: f"\rloss: {x}:  {i}%|█  | {s}/1000 [{BAR},  1.0s/it]", STEP, end=""),
    "desc_bar2": Format(lambda i, s, x: f"\rEpoch 1, loss {x}:  {i}%|█  | {s}/1000 [{BAR},  1.0it/s]", STEP, end=""),
    "unsloth_tab": Format(lambda i, s, x: ("Step\tTraining Loss\n" if i==0 else "")+f"{s}\t{x:.6f}", STEP),
    "hf_tab": Format(lambda i, s, x: ("Step\tTraining Loss\tValidation Loss\n" if i==0 else "")+f"{s}\t{x:.6f}\t{x+.1:.6f}", STEP),
    "md_tab": Format(lambda i, s, x: ("| Training Loss | Epoch | Step | Validation Loss |\n|:-:|:-:|:-:|:-:|\n" if i==0 else "")+f"| {x} | {i/40:.2f} | {s} | {x+.1:.4f} |", STEP),
    "nanogpt_eval": Format(lambda i, s, x: f"step {s}: train loss {x}, val loss {x+.1:.4f}", STEP),
    "mingpt": Format(lambda i, s, x: f"epoch 1 iter {s}: train loss {x}. lr 1.0e-04", STEP),
    "mingpt_bar": Format(lambda i, s, x: f"\repoch 1 iter {s}: train loss {x}. lr 1.0e-04:  {i}%|█  | {s}/1000 [{BAR},  1.0it/s]", STEP, end=""),
    "mingpt2": Format(lambda i, s, x: f"iter_dt 100.{i:02d}ms; iter {s}: train loss {x}", STEP),
    "gpt2simple": Format(lambda i, s, x: f"[{s} | {i*2.5:.2f}] loss={x} avg={x+.05:.4f}", STEP),
    "charrnn_lua": Format(lambda i, s, x: f"{s}/1000 (epoch {i/40:.3f}), train_loss = {x:.8f}, grad/param norm = 1.2e-01, time/batch = 0.5s", STEP),
    "charrnn_tf": Format(lambda i, s, x: f"{s}/1000 (epoch {i//10}), train_loss = {x:.3f}, time/batch = 0.512", STEP),
    "loss_step": Format(lambda i, s, x: f"loss {x} step {s}", STEP),
    "brackets": Format(lambda i, s, x: f"[{s}/1000] loss: {x}, 0.5 s", STEP),
    "colon": Format(lambda i, s, x: f"{s}: loss={x}", STEP),
    "sci": Format(lambda i, s, x: f"Training... step: {s}, Loss={x:.4e}, elapsed 0:00:10", STEP),
    "semi": Format(lambda i, s, x: f"epoch:1;step:{s};loss:{x}", STEP),
    "dict_epoch": Format(lambda i, s, x: f"train: {{'epoch': {i+1}, 'loss': {x}}}", EPOCHS),
    "avg_over": Format(lambda i, s, x: f"step {s}: avg loss over last 10 batches: {x}", STEP),
    "paren": Format(lambda i, s, x: f"Step {s} (epoch {i/40:.2f}): loss {x}", STEP),
    "swift2": Format(lambda i, s, x: f"{{'loss': {x}, 'grad_norm': 0.6, 'learning_rate': 1e-4, 'token_acc': 0.5, 'epoch': 0.0, 'global_step/max_steps': '{s}/58114', 'percentage': '0.02%', 'elapsed_time': '1m 52s', 'remaining_time': '7d 13h 27m 43s', 'memory(GiB)': 29.57, 'train_speed(s/it)': 11.24299}}", STEP),
    "swift3": Format(lambda i, s, x: f"\rTrain:   0%|          | {s}/58114 [00:09<156:18:24,  9.68s/it]\n{{'loss': {x}, 'epoch': 0.0, 'global_step/max_steps': '{s}/58114', 'train_speed(iter/s)': 0.1}}", STEP, end=""),
    "iter_s": Format(lambda i, s, x: f"iter: {s}, loss: {x}, 1.2 iter/s", STEP),
    "paddle_done": Format(lambda i, s, x: f"2022-04-12 17:06:10,849 - INFO - epoch: {i//10}, batch_id: {i%10*100}, AUC:0.5, loss:{x}, avg_reader_cost: 0.00058 sec, ips: 1000.7 ins/s"+tenth(i, f"\n2022-04-12 17:24:35,400 - INFO - epoch: {i//10} done, AUC: 0.87,loss:{x+1:.4f}, epoch time: 1105.58 s"), None),
    "summary_line": Format(lambda i, s, x: f"- Train | Epoch {1+i//10} | {i%10*100+1}/1000 | 1.45 it/sec | Loss {x} | Grad 0.12"+tenth(i, f"\n- Train Summary | Epoch {1+i//10} | Loss={x+1:.4f} | Grad=0.09"), None),
    "epoch_avg": Format(lambda i, s, x: f"Epoch {1+i//10} step {i%10+1}/10 loss {x}"+tenth(i, f"\nEpoch {1+i//10} loss {x+1:.4f} val_loss {x:.4f}"), None),
    "epoch_avg2": Format(lambda i, s, x: f"Epoch [{1+i//10}/4], Step [{i%10+1}/10], Loss: {x}"+tenth(i, f"\nEpoch [{1+i//10}/4], Average Loss: {x+1:.4f}"), None),
    "mse": Format(lambda i, s, x: f"Epoch {i+1:02d} | Train MSE: {x} | Gate Loss: 0.{i+10} | Val MSE: 0.03", EPOCHS),
    "rmse": Format(lambda i, s, x: f"epoch {i+1} train_rmse {x} val_rmse {x+1:.4f}", EPOCHS),
    "ppl_only": Format(lambda i, s, x: f"step {s} train_ppl {x} lr 0.1", STEP),
    "score": Format(lambda i, s, x: f"INFO ScoreIterationListener - Score at iteration {s} is {x}", STEP),
    "objective": Format(lambda i, s, x: f"iteration {s} objective {x} step_size 0.1", STEP),
    "err": Format(lambda i, s, x: f"epoch {i+1} error {x} lr 0.1", EPOCHS),
    "xent_long": Format(lambda i, s, x: f"step {s:>6} | xent {x} | acc 0.5", STEP),
    "ce": Format(lambda i, s, x: f"step {s} ce {x} z 0.001 aux 0.01", STEP),
    "nll_bits": Format(lambda i, s, x: f"[{s}] bpb {x}", STEP),
    "train_at": Format(lambda i, s, x: f"Train @ step {s}: loss = {x} | acc = 0.5", STEP),
    "step_eq_pad": Format(lambda i, s, x: f"step={s:06d}/010000 | loss={x:08.4f} | lr=1.00e-04 | 12.3s", STEP),
    "hms": Format(lambda i, s, x: f"[00:{i:02d}:10] {s}/1000 loss {x}", STEP),
    "pipe_head": Format(lambda i, s, x: f"INFO | {s} | loss={x} | lr=0.1", STEP),
    "worker": Format(lambda i, s, x: f"(RayTrainWorker pid=123, ip=10.0.0.1) {{'loss': {x}, 'learning_rate': 1e-5, 'epoch': 0.0{i}}}", None),
    "rank_dup": Format(lambda i, s, x: f"[rank0] step {s} loss {x}\n[rank1] step {s} loss {x+.01:.4f}", None),
    "val_paren": Format(lambda i, s, x: f"Epoch {i+1}/40 | loss: {x} (val: {x+.1:.4f}) | acc: 0.5 (val: 0.6)", EPOCHS),
    "train_val_slash": Format(lambda i, s, x: f"epoch {i+1}: train/val loss {x}/{x+.1:.4f}", EPOCHS),
    "train_val_words": Format(lambda i, s, x: f"Epoch: {i+1} | Train: loss={x} acc=0.5 | Val: loss={x+.1:.4f} acc=0.6", EPOCHS),
    "train_val_brack": Format(lambda i, s, x: f"epoch {i+1} train : [loss = {x}, top1 = 99.35%], valid : [loss = {x+.1:.4f}, top1 = 85.40%]", EPOCHS),
    "two_lines": Format(lambda i, s, x: f"Epoch {i+1}/40\n  train loss: {x}\n  val loss: {x+.1:.4f}\n", EPOCHS),
    "two_lines2": Format(lambda i, s, x: f"Epoch {i+1}\n----------\ntrain Loss: {x} Acc: 0.5\nval Loss: {x+.1:.4f} Acc: 0.6\n", EPOCHS),
    "table_pipe": Format(lambda i, s, x: ("Step | Train Loss | LR\n-----|-----|-----\n" if i==0 else "")+f"{s} | {x} | 0.001", STEP),
    "box": Format(lambda i, s, x: ("│ step │ loss │ lr │\n├──┼──┼──┤\n" if i==0 else "")+f"│ {s} │ {x} │ 0.001 │", STEP),
    "epoch_float": Format(lambda i, s, x: f"epoch {i/10:.2f} loss {x}", None),
    "ns": Format(lambda i, s, x: f"step {s} of 1000: loss {x}, 12.3 ms/step", STEP),
    "minutes": Format(lambda i, s, x: f"[{i}m {i}s] iter {s} loss {x}", STEP),
    "ago": Format(lambda i, s, x: f"{i}m {i}s (- {40-i}m 0s) ({s} {i}%) {x}", None),
}
