"""``python -m benchmarks.audit_scale``: seconds and memory that auditing the config of a very large model takes.

Each runs in a process of its own. Imports are not counted in the seconds, a tiny model is audited first so that they are
done; memory is the largest resident set of the process, everything included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: what the audit of each has to stay under
SECONDS, GIGABYTES = 15.0, 1.5

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16384, "intermediate_size": 53248,
    "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256, "dtype": "bfloat16",
}
DEEPSEEK = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_group": 8, "topk_group": 4, "vocab_size": 129280, "dtype": "bfloat16",
}
QWEN = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 4096, "intermediate_size": 12288,
    "moe_intermediate_size": 1536, "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936, "dtype": "bfloat16",
}
CONFIGS: dict[str, dict[str, Any]] = {"Llama 405B": LLAMA, "DeepSeek-V3 671B": DEEPSEEK, "Qwen3 235B": QWEN}


def audited(config: dict[str, Any]) -> Any:
    """The report on a config."""
    from stabilitylens import audit
    from stabilitylens.cli._model import build

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return audit(build(folder).model)


def measure(name: str) -> dict[str, Any]:
    """Seconds, memory and the headline of one model, in this process."""
    config = CONFIGS[name]
    small = {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 64, "vocab_size": 64, "num_attention_heads": 4}
    audited(config | small | {"moe_intermediate_size": 16, "num_key_value_heads": 4})
    began = time.perf_counter()
    report = audited(config)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"seconds": seconds, "gigabytes": peak, "parameters": report.anatomy.n_parameters, "verdict": report.verdict}


def main() -> int:
    """Print a line a model; 1 where one takes more than it may."""
    over = False
    for name in CONFIGS:
        child = [sys.executable, "-m", "benchmarks.audit_scale", name]
        found = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        over |= found["seconds"] > SECONDS or found["gigabytes"] > GIGABYTES
        print(
            f"{name:18} {found['parameters'] / 1e9:6.1f} B  {found['seconds']:5.1f} s (at most {SECONDS:g})  "
            f"{found['gigabytes']:.2f} GB (at most {GIGABYTES:g})  {found['verdict']}"
        )
    return int(over)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", choices=CONFIGS, help="measure this one in this process, and print it as JSON; by default all")
    asked = parser.parse_args().model
    if asked is None:
        sys.exit(main())
    print(json.dumps(measure(asked)))
