"""Between the pairs: what decides the severity, and what is left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stabilitylens.recipe import Recipe
from tests.rule_runs import (
    BATCH,
    HEADS,
    LAYERS,
    RECIPE,
    SAMPLES,
    Case,
    T,
    anatomy,
    at,
    by_module,
    everywhere,
    flat,
    heads,
    initial,
    late,
    layers,
    modules,
    noise,
    qk_growth,
    rise,
    run,
    skipping,
    spiked,
    static,
    twice,
)

BAND = {
    "QK-Norm with a scale of 1, logits calm": Case("SL103", "info", lambda: run(
        model=anatomy(scale=1.0), max_attn_logit=heads(rise(5, 17)))),
    "QK-Norm with a scale of 1, logits grew": Case("SL103", "error", lambda: run(
        model=anatomy(scale=1.0), max_attn_logit=heads(rise(3, 5000)))),
    "ℓ2 with a scale of 10": Case("SL103", None, lambda: static(anatomy(qk_norm="l2", scale=10.0))),
    "output norm alone, 8 blocks": Case("SL104", None, lambda: static(anatomy(8, "output", "none"))),
    "output norm alone, measured calm": Case("SL104", "info", lambda: initial(
        anatomy(16, "output", "none"), resid_grad_norm=layers(flat(1.0)) * np.array([2.0, 1.5, 1.0, 1.0]))),
    "output norm alone, measured steep": Case("SL104", "warning", lambda: initial(
        anatomy(16, "output", "none"), resid_grad_norm=layers(flat(1.0)) * np.array([40.0, 9.0, 3.0, 1.0]))),
    "no norm, factor unread": Case("SL105", "warning", lambda: static(anatomy(16, "none"))),
    "no norm, scaled start": Case("SL105", None, lambda: static(anatomy(16, "none"), replace(RECIPE, scaled_init=True))),
    "no norm, measured steep": Case("SL105", "error", lambda: initial(
        anatomy(16, "none"), resid_rms=layers(flat(1.0)) * np.array([1.0, 5.0, 25.0, 125.0]))),
    "no norm, measured level": Case("SL105", "info", lambda: initial(
        anatomy(16, "none", residual_scale=False), resid_rms=layers(flat(1.0)) * np.array([1.0, 1.1, 1.2, 1.3]))),
    "24 Pre-LN blocks": Case("SL106", None, lambda: static(anatomy(24))),
    "48 blocks with a scaled start": Case("SL106", None, lambda: static(anatomy(48), replace(RECIPE, scaled_init=True))),
    "80 Peri-LN blocks": Case("SL108", None, lambda: static(anatomy(80, "peri", "none"))),
    "BatchNorm, task lm": Case("SL109", "error", lambda: static(anatomy(norm_kind="batchnorm"), replace(RECIPE, task="lm"))),
    "a large α in a narrow model": Case("SL110", None, lambda: static(anatomy(norm_kind="dyt", d_model=1024, alpha=(1.0, 1.0)))),
    "a large α at 7B": Case("SL110", "warning", lambda: static(anatomy(norm_kind="dyt", d_model=4096, alpha=(0.8, 0.5)))),
    "DyT with SwiGLU on pictures": Case("SL111", None, lambda: static(anatomy(norm_kind="dyt", gated=True, reads_tokens=False))),
    "DeepNorm without warm-up": Case("SL601", "warning", lambda: static(
        anatomy(24, "post", residual_scale=True), replace(RECIPE, warmup_steps=0))),
    "Post-LN without any warm-up, β2 not known": Case("SL601", "error", lambda: static(
        anatomy(24, "post"), replace(RECIPE, warmup_steps=0, beta2=None))),
    "18 blocks of DeepNorm": Case("SL102", None, lambda: static(anatomy(18, "post", residual_scale=True), replace(RECIPE, warmup_steps=0))),
    "a short run": Case("SL602", "info", lambda: static(anatomy(), replace(RECIPE, beta2=0.999, total_steps=3000))),
    "RAdam": Case("SL602", None, lambda: static(anatomy(), replace(RECIPE, optimizer="RAdam", warmup_steps=0))),
    "β2 of .99, 4M tokens": Case("SL603", "warning", lambda: static(anatomy(), replace(BATCH, beta2=0.99))),
    "β2 of .999, few tokens": Case("SL603", None, lambda: static(anatomy(), replace(BATCH, beta2=0.999, n_devices=1))),
    "β2 of .999, 16,384 samples": Case("SL603", "warning", lambda: static(anatomy(), replace(
        BATCH, beta2=0.999, seq_len=None, n_devices=512))),
    "a fifth clipped": Case("SL604", "info", lambda: run(
        replace(RECIPE, max_grad_norm=1.0), grad_norm=np.where(np.arange(SAMPLES) % 5, 0.3, 2.0))),
    "all clipped": Case("SL604", "warning", lambda: run(replace(RECIPE, max_grad_norm=1.0), grad_norm=3 * noise(0))),
    "clipped all along, as recorded": Case("SL604", "warning", lambda: run(RECIPE, clip_coef=0.4 * noise(0))),
    "a fifth clipped, as recorded without a recipe": Case(
        "SL604", "info", lambda: run(None, clip_coef=np.where(np.arange(SAMPLES) % 5, 1.0, 0.5))),
    "clipped while warming up, as recorded": Case(
        "SL604", None, lambda: run(RECIPE, clip_coef=np.where(T < 0.3, 0.2, 1.0), grad_norm=flat(9.0))),
    "never clipped, as recorded": Case(
        "SL604", None, lambda: run(replace(RECIPE, max_grad_norm=1.0), clip_coef=flat(1.0), grad_norm=flat(0.5))),
    "clipped while warming up": Case("SL604", None, lambda: run(
        replace(RECIPE, max_grad_norm=1.0), grad_norm=np.where(T < 0.3, 4.0, 0.4))),
    "bf16 statistics in the dataflow": Case("SL605", "error", lambda: static(anatomy(norm_precision="bf16"))),
    "16-bit statistics in an fp32 run": Case("SL605", None, lambda: static(
        anatomy(norm_precision="bf16"), replace(RECIPE, precision="fp32"))),
    "fp16 parameters, ε of 1e-8": Case("SL606", "error", lambda: static(
        anatomy(), Recipe(precision="fp16", loss_scaling=True, param_precision="fp16", eps=1e-8))),
    "bf16": Case("SL606", None, lambda: static(anatomy(), RECIPE)),
    "LayerNorm of 2": Case("SL607", None, lambda: static(anatomy(), Recipe(batch_size=2))),
    "no decay at all": Case("SL608", None, lambda: static(anatomy(), Recipe(weight_decay=0.0))),
    "embeddings of .02 at the start": Case("SL609", "info", lambda: initial(anatomy(), embedding_rms=flat(0.02))),
    "embeddings of .02, Post-LN": Case("SL609", None, lambda: initial(anatomy(placement="post"), embedding_rms=flat(0.02))),
    "rows without a key, gradient NaN": Case("SL204", "error", lambda: run(
        masked_rows=at(heads(flat(0.0)), (1,), np.full((SAMPLES, HEADS), 24.0)), grad_norm=spiked(1.0, 20, np.nan))),
    "rows without a key, activations NaN": Case("SL204", "error", lambda: run(
        masked_rows=at(heads(flat(0.0)), (1,), np.full((SAMPLES, HEADS), 24.0)), nonfinite_count=layers(spiked(0.0, 20, 7.0)))),
    "gradient hundredfold": Case("SL304", "warning", lambda: run(
        resid_grad_norm=layers(flat(1.0)) * np.array([500.0, 30.0, 5.0, 1.0]))),
    "gradient infinite": Case("SL304", "error", lambda: run(
        resid_grad_norm=layers(flat(1.0)) * np.array([np.inf, 1.0, 1.0, 1.0]))),
    "gradient hundredfold at the start": Case("SL304", "warning", lambda: initial(
        resid_grad_norm=layers(flat(1.0)) * np.array([500.0, 30.0, 5.0, 1.0]))),
    "gradient gone at the start": Case("SL301", "error", lambda: initial(
        resid_grad_norm=layers(flat(1.0)) * np.array([1e-6, 1e-3, 1e-1, 1.0]))),
    "logits of 300 at the start": Case("SL201", "warning", lambda: initial(max_attn_logit=heads(flat(300.0)))),
    "logits of 3 at the start": Case("SL201", None, lambda: initial(max_attn_logit=heads(flat(3.0)))),
    "one jump of the embedding's gradient": Case("SL305", "info", lambda: by_module(at(modules(), (0,), spiked(1.0, 20, 40.0)))),
    "the output layer's gradient jumps": Case("SL305", None, lambda: by_module(at(modules(), (1,), twice(1.0, 40.0)))),
    "a record that begins cold": Case("SL306", "error", lambda: late(run(update_rms=layers(0.2 + 0.8 * np.exp(-9 * T)) / noise(0, LAYERS)))),
    "the first step of training": Case("SL306", None, lambda: run(update_rms=layers(0.2 + 0.8 * np.exp(-9 * T)) / noise(0, LAYERS))),
    "entries that grow": Case("SL502", "warning", lambda: run(resid_absmax=layers(rise(200, 5000)), resid_rms=layers(flat(3.0)))),
    "entries of 5,000 in fp16": Case("SL502", "warning", lambda: run(
        replace(RECIPE, precision="fp16"), resid_absmax=layers(flat(5000.0)), resid_rms=layers(flat(3.0)))),
    "all steps skipped": Case("SL503", "error", lambda: skipping(run(loss=flat(2.0)), *range(0, 400, 10))),
    "the scale came down to 1": Case("SL503", "error", lambda: run(
        loss=flat(2.0), loss_scale=np.maximum(1.0, 65536 * 2.0 ** -np.floor(20 * T)))),
    "a coarsely rounded norm": Case("SL001", None, lambda: run(grad_norm=np.round(0.25 + 0.1 * noise(0, size=0.5), 1))),
    "a constant norm": Case("SL001", "warning", lambda: run(grad_norm=flat(1.0))),
    "a norm that doubles evenly": Case("SL002", "warning", lambda: run(
        grad_norm=4096 * 2.0 ** np.floor(np.arange(SAMPLES) / 9) * noise(0))),
    "a large norm that does not": Case("SL002", None, lambda: run(grad_norm=4096 * noise(0, size=0.4))),
    "QK-Clip": Case("SL101", None, lambda: static(anatomy(qk_norm="none"), replace(RECIPE, lr=0.1, qk_clip=100.0))),
    "modalities share a stream": Case("SL101", "warning", lambda: static(anatomy(qk_norm="none"), replace(RECIPE, multimodal=True))),
    "nothing risky": Case("SL101", "info", lambda: static(anatomy(qk_norm="none"))),
    "a soft-cap instead": Case("SL101", None, lambda: static(anatomy(qk_norm="none", soft_cap=50.0), replace(RECIPE, lr=0.1))),
    "8 billion": Case("SL101", "warning", lambda: static(anatomy(qk_norm="none", n_parameters=8_000_000_000))),
    "Muon": Case("SL101", "warning", lambda: static(anatomy(qk_norm="none"), Recipe("Muon", lr=0.002))),
    "SGD at 0.1": Case("SL101", "info", lambda: static(anatomy(qk_norm="none"), Recipe("SGD", lr=0.1))),
    "8 billion, logits measured calm": Case("SL101", "info", lambda: run(
        model=anatomy(qk_norm="none", n_parameters=8_000_000_000), max_attn_logit=heads(rise(5, 17)))),
    "logits measured past 1,000": Case("SL101", "error", lambda: run(
        model=anatomy(qk_norm="none"), max_attn_logit=heads(rise(3, 5000)))),
    "Post-LN with a warm-up": Case("SL102", "info", lambda: static(anatomy(18, "post"))),
    "18 Pre-LN blocks": Case("SL102", None, lambda: static(anatomy(18))),
    "18 Peri-LN blocks": Case("SL102", None, lambda: static(anatomy(18, "peri"))),
    "past 100 and rising": Case("SL201", "warning", lambda: run(max_attn_logit=heads(rise(3, 400)))),
    "past 1,000 and rising": Case("SL201", "error", lambda: run(max_attn_logit=heads(rise(3, 3000)))),
    "grew past 1,000, then level": Case("SL201", "warning", lambda: run(
        max_attn_logit=heads(np.minimum(rise(3, 1e7), 2000)))),
    "past 100 in the last samples": Case("SL201", "warning", lambda: run(
        max_attn_logit=heads(np.where(np.arange(SAMPLES) < 36, 20.0, 400.0)))),
    "overflowed": Case("SL201", "error", lambda: run(
        max_attn_logit=np.where(heads(rise(3, 1e5)) > 1e4, np.inf, heads(rise(3, 1e5))))),
    "then nothing but NaN": Case("SL201", "error", lambda: run(
        max_attn_logit=np.where(np.arange(SAMPLES)[:, None, None] < 30, heads(rise(3, 1e6)), np.nan))),
    "to a ratio of .06": Case("SL202", "warning", lambda: run(attn_entropy_ratio=heads(rise(0.9, 0.06)))),
    "sharp from the start": Case("SL202", "warning", lambda: run(attn_entropy_ratio=heads(flat(0.02)))),
    "one sharp head": Case("SL202", "info", lambda: run(attn_entropy_ratio=at(heads(flat(0.8)), (2, 1), rise(0.8, 0.01)))),
    "one sharp head with large logits": Case("SL202", "error", lambda: run(
        attn_entropy_ratio=at(heads(flat(0.8)), (2, 1), rise(0.8, 0.01)),
        max_attn_logit=at(heads(flat(9.0)), (2, 1), rise(9.0, 900.0)))),
    "an outlier layer that grew": Case("SL203", "warning", lambda: run(
        query_norm=at(heads(flat(18.0)), (1,), np.tile(rise(18, 590)[:, None], HEADS)), key_norm=heads(flat(18.0)),
        value_norm=heads(flat(5.0)))),
    "an outlier layer by design": Case("SL203", "info", lambda: run(
        query_norm=heads(flat(18.0)), key_norm=at(heads(flat(18.0)), (0,), np.tile(flat(300.0)[:, None], HEADS)),
        value_norm=heads(flat(5.0)))),
    "growth without large logits": Case("SL203", None, lambda: qk_growth(20, 5)),
    "growth at an unknown scale": Case("SL203", "warning", lambda: qk_growth(
        20, 5, attention_scale=None, d_head=None, attention_calls=())),
    "gradient low": Case("SL301", "warning", lambda: run(
        resid_grad_norm=layers(flat(1.0)) * np.array([1e-3, 0.1, 0.5, 1.0]))),
    "frozen first blocks": Case("SL301", None, lambda: run(
        resid_grad_norm=layers(flat(1.0)) * np.array([np.nan, np.nan, 0.8, 1.0]))),
    "all loss scales": Case("SL301", None, lambda: run(resid_grad_norm=layers(rise(1e-8, 1e8)))),
    "gradient near ε": Case("SL302", "warning", lambda: run(grad_rms=layers(flat(5e-8)))),
    "a module outside the blocks": Case("SL302", "error", lambda: run(
        grad_rms=layers(flat(1e-4)), grad_rms__group=everywhere(flat(1.0), 2) * np.array([1e-9, 1e-4]))),
    "no gradient at all": Case("SL302", None, lambda: run(grad_rms=layers(flat(0.0)))),
    "in fp16, near the top": Case("SL501", "warning", lambda: run(
        replace(RECIPE, precision="fp16"), resid_rms=layers(flat(5.0)), resid_absmax=layers(flat(10_000.0)))),
    "in fp16, at the top": Case("SL501", "error", lambda: run(
        replace(RECIPE, precision="fp16"), resid_rms=layers(flat(5.0)), resid_absmax=layers(flat(40_000.0)))),
    "as large in bf16": Case("SL501", None, lambda: run(resid_rms=layers(flat(5.0)), resid_absmax=layers(flat(40_000.0)))),
    "every block times four": Case("SL501", "warning", lambda: run(
        resid_rms=layers(flat(1.0)) * np.array([1.0, 4.0, 16.0, 64.0]))),
    "every block a quarter": Case("SL501", "warning", lambda: run(
        resid_rms=layers(flat(1.0)) / np.array([1.0, 4.0, 16.0, 64.0]))),
    "log Z moves by 30": Case("SL401", "info", lambda: run(log_z=np.linspace(10, -20, SAMPLES))),
}
