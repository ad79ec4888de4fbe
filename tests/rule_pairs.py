"""Of each rule a pair: a run or model on which it fires and one on which it stays silent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stabilitylens.recipe import Recipe
from tests.rule_runs import (
    BATCH,
    HEADS,
    RECIPE,
    SAMPLES,
    SCALE,
    Case,
    T,
    anatomy,
    at,
    by_module,
    flat,
    heads,
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

PAIRS = {
    "no norm on q and k, LR 0.1": Case("SL101", "warning", lambda: static(anatomy(qk_norm="none"), replace(RECIPE, lr=0.1))),
    "norm on q and k": Case("SL101", None, lambda: static(anatomy(), replace(RECIPE, lr=0.1))),
    "18 Post-LN blocks": Case("SL102", "warning", lambda: static(anatomy(18, "post"), replace(RECIPE, warmup_steps=30))),
    "12 Post-LN blocks": Case("SL102", None, lambda: static(anatomy(12, "post"))),
    "logits grow to 20,000": Case("SL201", "error", lambda: run(max_attn_logit=heads(rise(3, 20_000)))),
    "logits stay under 20": Case("SL201", None, lambda: run(max_attn_logit=heads(rise(5, 17)))),
    "all heads collapse": Case("SL202", "error", lambda: run(attn_entropy_ratio=heads(rise(0.9, 0.005)))),
    "entropy stays": Case("SL202", None, lambda: run(attn_entropy_ratio=heads(rise(0.95, 0.6)))),
    "q and k grow, v does not": Case("SL203", "warning", lambda: qk_growth(60, 5)),
    "q, k and v grow alike": Case("SL203", None, lambda: qk_growth(60, 60)),
    "gradient gone at the first block": Case(
        "SL301", "error", lambda: run(resid_grad_norm=layers(flat(1.0)) * np.array([1e-6, 1e-3, 1e-1, 1.0]))
    ),
    "gradient falls threefold a block": Case(
        "SL301", None, lambda: run(resid_grad_norm=layers(flat(1.0)) * np.array([0.04, 0.1, 0.3, 1.0]))
    ),
    "gradient under ε": Case("SL302", "error", lambda: run(grad_rms=at(layers(flat(1e-5)), (0,), rise(1e-6, 1e-9)))),
    "gradient at a thousand ε": Case("SL302", None, lambda: run(grad_rms=layers(rise(1e-4, 1e-5)))),
    "update jumps to 3": Case("SL303", "warning", lambda: run(adam_rms=at(layers(flat(0.9)), (1,), spiked(0.9, 20, 3.0)))),
    "update near 1": Case("SL303", None, lambda: run(adam_rms=layers(flat(1.1)))),
    "log Z falls to -80": Case("SL401", "warning", lambda: run(log_z=np.linspace(10.8, -80, SAMPLES))),
    "log Z settles": Case("SL401", None, lambda: run(log_z=4 + 6.8 * np.exp(-8 * T) + np.log(noise(0)))),
    "the stream grows a thousandfold": Case("SL501", "warning", lambda: run(resid_rms=layers(rise(1, 5000)))),
    "the stream doubles": Case("SL501", None, lambda: run(resid_rms=layers(rise(1, 2)) * np.array([1, 2, 3, 4]))),
    "QK-Norm with a scale of 1": Case("SL103", "warning", lambda: static(anatomy(scale=1.0))),
    "QK-Norm with 1/√d": Case("SL103", None, lambda: static(anatomy())),
    "output norm alone": Case("SL104", "warning", lambda: static(anatomy(16, "output", "none"))),
    "output norm with QK-Norm": Case("SL104", None, lambda: static(anatomy(32, "output", "full"))),
    "16 blocks without norm": Case("SL105", "error", lambda: static(anatomy(16, "none", residual_scale=False))),
    "ReZero": Case("SL105", None, lambda: static(anatomy(16, "none", residual_scale=True))),
    "48 Pre-LN blocks": Case("SL106", "info", lambda: static(anatomy(48))),
    "48 blocks with LayerNorm scaling": Case("SL106", None, lambda: static(anatomy(48, norm_scale=True))),
    "norms and projections scaled": Case(
        "SL107", "warning", lambda: static(anatomy(norm_scale=True), replace(RECIPE, scaled_init=True))
    ),
    "norms alone scaled": Case("SL107", None, lambda: static(anatomy(norm_scale=True), replace(RECIPE, scaled_init=False))),
    "80 Pre-LN blocks": Case("SL108", "info", lambda: static(anatomy(80, qk_norm="none"))),
    "80 blocks with QK-Norm": Case("SL108", None, lambda: static(anatomy(80))),
    "BatchNorm on tokens": Case("SL109", "error", lambda: static(anatomy(norm_kind="batchnorm", reads_tokens=True))),
    "BatchNorm on pictures": Case("SL109", None, lambda: static(anatomy(norm_kind="batchnorm", reads_tokens=False))),
    "a large α at 70B": Case("SL110", "warning", lambda: static(anatomy(norm_kind="dyt", d_model=8192, alpha=(0.8, 0.2)))),
    "the table's α at 70B": Case("SL110", None, lambda: static(anatomy(norm_kind="dyt", d_model=8192, alpha=(0.2, 0.05)))),
    "DyT with SwiGLU": Case("SL111", "warning", lambda: static(anatomy(norm_kind="dyt", gated=True, reads_tokens=True))),
    "DyT without a gate": Case("SL111", None, lambda: static(anatomy(norm_kind="dyt", gated=False, reads_tokens=True))),
    "Derf at 7B": Case("SL112", "info", lambda: static(anatomy(norm_kind="derf", n_parameters=7_000_000_000))),
    "Derf at 100M": Case("SL112", None, lambda: static(anatomy(norm_kind="derf", n_parameters=100_000_000))),
    "a cap alone": Case("SL113", "info", lambda: static(anatomy(qk_norm="none", soft_cap=50.0))),
    "a cap and QK-Norm": Case("SL113", None, lambda: static(anatomy(soft_cap=50.0))),
    "Post-LN without warm-up": Case("SL601", "error", lambda: static(anatomy(24, "post"), replace(RECIPE, warmup_steps=0))),
    "Pre-LN without warm-up": Case("SL601", None, lambda: static(anatomy(24), replace(RECIPE, warmup_steps=0))),
    "a warm-up of 100 for .999": Case("SL602", "warning", lambda: static(anatomy(), replace(RECIPE, beta2=0.999))),
    "a warm-up of 100 for .95": Case("SL602", None, lambda: static(anatomy())),
    "β2 of .999, 4M tokens": Case("SL603", "warning", lambda: static(anatomy(), replace(BATCH, beta2=0.999))),
    "β2 of .95, 4M tokens": Case("SL603", None, lambda: static(anatomy(), BATCH)),
    "clipping is off": Case("SL604", "info", lambda: run(replace(RECIPE, max_grad_norm=0.0), loss=flat(2.0))),
    "clipping is on": Case("SL604", None, lambda: run(replace(RECIPE, max_grad_norm=1.0), grad_norm=0.3 * noise(0))),
    "bf16 statistics": Case("SL605", "error", lambda: static(anatomy(), replace(RECIPE, norm_precision="bf16"))),
    "fp32 statistics": Case("SL605", None, lambda: static(anatomy(), replace(RECIPE, norm_precision="fp32"))),
    "fp16 unscaled": Case("SL606", "error", lambda: static(anatomy(), Recipe(precision="fp16", loss_scaling=False))),
    "fp16 scaled": Case("SL606", None, lambda: static(anatomy(), Recipe(precision="fp16", loss_scaling=True))),
    "BatchNorm of 2": Case("SL607", "warning", lambda: static(anatomy(norm_kind="batchnorm"), Recipe(batch_size=2))),
    "BatchNorm of 32": Case("SL607", None, lambda: static(anatomy(norm_kind="batchnorm"), Recipe(batch_size=32))),
    "decay on embeddings": Case("SL608", "info", lambda: static(anatomy(), Recipe(embedding_weight_decay=0.1))),
    "embeddings exempt": Case("SL608", None, lambda: static(anatomy(), Recipe(embedding_weight_decay=0.0))),
    "embeddings of .02": Case("SL609", "info", lambda: run(model=anatomy(), embedding_rms=flat(0.02))),
    "embeddings of 1": Case("SL609", None, lambda: run(model=anatomy(), embedding_rms=flat(1.0))),
    "rows without a key": Case("SL204", "info", lambda: run(masked_rows=at(heads(flat(0.0)), (1,), np.full((SAMPLES, HEADS), 24.0)))),
    "every row sees a key": Case("SL204", None, lambda: run(masked_rows=heads(flat(0.0)))),
    "gradient grows on its way back": Case(
        "SL304", "error", lambda: run(resid_grad_norm=layers(flat(1.0)) * np.array([1e5, 1e3, 1e1, 1.0]))
    ),
    "gradient grows fourfold in all": Case(
        "SL304", None, lambda: run(resid_grad_norm=layers(flat(1.0)) * np.array([4.0, 3.0, 2.0, 1.0]))
    ),
    "the embedding's gradient jumps": Case("SL305", "warning", lambda: by_module(at(modules(), (0,), twice(1.0, 40.0)))),
    "all gradients jump": Case("SL305", None, lambda: by_module(at(modules(), (0,), twice(1.0, 40.0)), twice(1.0, 40.0))),
    "moments were lost": Case("SL306", "error", lambda: run(update_rms=np.where(np.arange(SAMPLES)[:, None] == 20, 1.0, layers(flat(0.2))))),
    "moments were kept": Case("SL306", None, lambda: run(update_rms=at(layers(flat(0.2)), (0,), spiked(0.2, 20, 1.0)))),
    "no gradient from the middle on": Case("SL307", "error", lambda: run(loss=flat(2.0), grad_norm=np.where(T < 0.5, 1.0, 0.0))),
    "no gradient in between": Case("SL307", None, lambda: run(loss=flat(2.0), grad_norm=np.where(abs(T - 0.5) < 0.2, 0.0, 1.0))),
    "NaN and no gradient": Case("SL402", "error", lambda: run(
        loss=spiked(2.0, 20, np.nan), grad_norm=spiked(1.0, 20, 0.0))),
    "NaN and a gradient": Case("SL402", None, lambda: run(loss=spiked(2.0, 20, np.nan), grad_norm=spiked(1.0, 20, np.nan))),
    "entries of 5,000": Case("SL502", "info", lambda: run(resid_absmax=layers(flat(5000.0)), resid_rms=layers(flat(3.0)))),
    "entries of 50": Case("SL502", None, lambda: run(resid_absmax=layers(flat(50.0)), resid_rms=layers(flat(0.03)))),
    "a tenth of the steps skipped": Case("SL503", "warning", lambda: skipping(run(loss=flat(2.0)), *range(150, 200, 10))),
    "the first steps skipped": Case("SL503", None, lambda: skipping(run(loss=flat(2.0)), 0, 10, 20, 30)),
    "a norm that never passes 1": Case("SL001", "warning", lambda: run(grad_norm=np.minimum(1.0, 0.9 * noise(0, size=0.5)))),
    "a norm that passes 1": Case("SL001", None, lambda: run(grad_norm=0.9 * noise(0, size=0.5))),
    "a norm that follows the scale": Case("SL002", "warning", lambda: run(grad_norm=SCALE * noise(0), loss_scale=SCALE)),
    "a norm beside a scale": Case("SL002", None, lambda: run(grad_norm=noise(0), loss_scale=SCALE)),
    "loss 0 and no gradient norm": Case("SL003", "error", lambda: run(
        loss=np.where(T < 0.5, 2.0, 0.0), grad_norm=np.where(T < 0.5, 1.0, np.nan))),
    "loss 0 and a gradient norm": Case("SL003", None, lambda: run(loss=np.where(T < 0.5, 2.0, 0.0), grad_norm=flat(1.0))),
}
