"""Reads text logs of any layout."""

from __future__ import annotations

from pathlib import Path

from stabilitylens.readers._reader import reader
from stabilitylens.readers._text_reader import LOGS, read_text, sureness
from stabilitylens.run import Run


@reader(name="text", sniff=sureness, most=LOGS)
def read(path: Path) -> list[Run]:
    """Text logs of any layout: lines of ``key: value``, ``key=value``, ``key value``, tables, progress bars.

    The layout is learned from the file. Each number is named by the text before it, whatever separates the two:
    ``step 100 | loss: 2.31``, ``Epoch [1][50/7330] lr: 0.02, loss: 1.3``, ``{'loss': 0.69, 'epoch': 0.02}``,
    ``Loss is 1.26``, ``loss = tensor(3.2)``, ``Validation loss 6312: 0.15``; of ``3.21 (3.45)`` the first is the value and
    the second becomes ``…/mean``. Reads so what nanoGPT, modded-nanogpt, torchtitan, torchtune, litgpt, nanotron, OLMo,
    NeMo, DeepSpeed, Marian, OpenNMT, axolotl, LLaMA-Factory, Hugging Face's console, Keras, mmengine, detectron2, timm,
    ESPnet, Composer, TF Estimator, BigDL, MLX and a loop of one's own print.

    - Dates, log levels, places in source code, colours, units, totals (``100/5000``) and percentages are no values;
      milliseconds become seconds, ``85.8G`` becomes 8.58e10.
    - Counters in a line of their own (``Epoch 3/10``, ``[step=100/5000]``), the frame of a bar above a line, and the lines
      of a block belong to the values that follow; objects may stretch over lines; tables have their names above them.
    - Frames of one bar at one step are one row, the last one, also where several workers draw it.
    - Lines that say validation, test or evaluation name their values ``val/…``.
    - Scripts, configurations and tracebacks in the file are passed over: a loss without any counter counts only where
      such lines are many.
    - ``Loss is NaN, stopping`` is a NaN; ``Gradient overflow. Skipping step`` is a step that was skipped.
    """
    return read_text(path, "text")
