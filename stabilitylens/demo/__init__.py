"""The published instability, live: attention logits that grow while the loss looks unremarkable.

A small causal Transformer is trained on real text at a high learning rate, once as it is and once with
QK-Norm, both under observation; the post-mortem tells them apart.
"""

from stabilitylens.demo.show import demonstrate

__all__ = ["demonstrate"]
