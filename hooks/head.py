"""Finds the module that makes the output logits, by structure alone."""

from __future__ import annotations

from torch import nn


def find_head(model: nn.Module, names: dict[nn.Module, str], blocks: set[str]) -> str | None:
    """Canonical name of the output head; None where it can't be told.

    It is the linear layer outside the blocks that maps the width of an embedding back to its vocabulary.
    A model without any embedding (a vision Transformer) has as its head the linear layer that is defined last.

    Args:
        model: the model, whose order of definition tells what follows the blocks.
        names: canonical name of each module.
        blocks: names of the repeated blocks.
    """
    outside = [m for m, name in names.items() if not any(name == b or name.startswith(f"{b}.") for b in blocks)]
    vocabularies = {(m.num_embeddings, m.embedding_dim) for m in outside if isinstance(m, nn.Embedding)}
    linear = [m for m in outside if isinstance(m, nn.Linear)]
    if not vocabularies:
        last = linear[-1] if linear and blocks else None
        return names[last] if last is not None and last.out_features > 1 and _follows_blocks(model, last, blocks) else None
    heads = [m for m in linear if (m.out_features, m.in_features) in vocabularies and m.out_features > m.in_features // 8]
    return names[heads[-1]] if len(heads) >= 1 else None


def _follows_blocks(model: nn.Module, module: nn.Module, blocks: set[str]) -> bool:
    order = [m for _, m in model.named_modules()]
    names = [name for name, _ in model.named_modules()]
    last_block = max((i for i, name in enumerate(names) if any(name.endswith(b) for b in blocks)), default=-1)
    return order.index(module) > last_block
