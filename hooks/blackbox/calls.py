"""The calls of a lens that are the black box's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stabilitylens.hooks.guard import Guard

if TYPE_CHECKING:
    from stabilitylens.hooks.blackbox.box import Box
    from stabilitylens.hooks.blackbox.options import BlackBox
    from stabilitylens.hooks.subject import Subject

Batch = TypeVar("Batch")


class BlackBoxCalls:
    """What :class:`stabilitylens.Lens` offers where it was attached with ``blackbox=``.

    Attributes:
        box: what keeps; None without a black box.
    """

    guard: Guard
    logdir: Path
    step_number: int
    box: Box | None = None

    def keep(self, options: BlackBox | None, subject: Subject, scaler: Any) -> None:
        """Begin to keep what a black box keeps; nothing without options."""
        if options is None:
            return
        from stabilitylens.hooks.blackbox.box import Box
        from stabilitylens.hooks.blackbox.crowd import Alone, Crowd

        lens: Any = self
        self.box = Box(
            options, subject, lens.optimizers, scaler, self.logdir, self.guard, lambda: self.step_number, lens._recorder.event,
            lambda: not lens.guards.quiet, Alone() if lens._together is None else Crowd(lens._together._ranks),
        )  # fmt: skip
        lens.on_close(self.box.close)

    def _keep_step(self, step: int, scalars: dict[str, Any]) -> None:
        if self.box is not None:
            self.box.end_step(step, scalars)

    def _note_sample(self, step: int, arrays: Mapping[str, Any]) -> None:
        if self.box is not None:
            self.box.note_sample(step, arrays)

    def batch(self, batch: Batch, ids: Any = None) -> Batch:
        """Keep a micro-batch for a replay, in place of what the model's forward is called with. Call it before the forward.

        Args:
            batch: tensors, arrays and numbers in dictionaries, lists and tuples; it is neither changed nor moved.
            ids: of its rows, in order, so that a bad one can be named.

        Returns:
            The batch.
        """
        if self.box is None:
            self.guard.say("lens.batch() keeps nothing without a black box: attach(…, blackbox=True)")
            return batch
        try:
            self.box.batch(batch, ids)
        except Exception as error:
            self.guard.failed("keeping a batch", error)
        return batch

    def dump(self, reason: str = "asked for") -> Path | None:
        """Write what is kept of the last steps, the one that ended last as the incident. Of several processes all have to call it.

        Args:
            reason: in words, for the record.

        Returns:
            The incident's folder; None where nothing is kept, or it could not be written, which is said.
        """
        if self.box is None:
            self.guard.say("lens.dump() writes nothing without a black box: attach(…, blackbox=True)")
            return None
        try:
            return self.box.dump(reason)
        except Exception as error:
            self.guard.failed("dumping an incident", error)
            return None
