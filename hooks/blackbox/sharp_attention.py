"""Which attention call of a step has logits so large that its softmax picks one key, and in which head."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from torch import nn

from stabilitylens.hooks.blackbox.result import FirstBad
from stabilitylens.rules._logits import LOGIT_HIGH


class SharpAttention(ExitStack):
    """Watches the attention calls of a model's forwards while it is entered.

    Args:
        model: the model, whose results stay what they are.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        from stabilitylens.hooks.counterfactuals._attention import AttentionView

        self._module_of: dict[int, str] = {}
        for name, module in model.named_modules():
            if next(module.children(), None) is not None:  # a product is only known for attention once what follows it ends
                self._follow(name, module)
        self._view = AttentionView(SimpleNamespace(model=model, stack=self))  # type: ignore[arg-type]

    def _follow(self, name: str, module: nn.Module) -> None:
        """Know which attention calls are made in a module."""

        def leave(*_: Any) -> None:
            for number in self._view.largest:
                self._module_of.setdefault(number, name)  # the innermost one ends first

        self.callback(module.register_forward_hook(leave).remove)

    def first_bad(self, step: int) -> FirstBad | None:
        """The first call of the forward with a head whose largest logit passes the limit; None where none does."""
        for number, heads in sorted(self._view.largest.items()):
            head, most = int(heads.argmax()), float(heads.max())
            if most > LOGIT_HIGH:
                module = self._module_of.get(number, "")
                over = int((heads > LOGIT_HIGH).sum())
                text = (
                    f"step {step}, forward: the attention in {module or 'the model itself'} is the first with a logit above {LOGIT_HIGH:g}: "
                    f"{most:.4g} in head {head}, and {over} of its {len(heads)} heads pass it"
                )
                return FirstBad("logits", step, module, "forward", None, (), text)
        return None
