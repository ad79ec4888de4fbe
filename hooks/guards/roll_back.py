from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stabilitylens.errors import BadInput
from stabilitylens.hooks.guards._action import Alarm, Cured, action

if TYPE_CHECKING:
    from stabilitylens.hooks.lens import Lens


def _check(lens: Lens, options: dict[str, Any]) -> None:
    if lens.box is None or not lens.box.options.snapshot_every:
        raise BadInput("lens.on(…, 'roll_back') needs snapshots: attach(…, blackbox=stabilitylens.BlackBox(snapshot_every=…))")


@action("roll_back", check=_check)
def roll_back(alarm: Alarm) -> str:
    """Put weights, optimizers, scaler and schedule back to the older of the black box's two snapshots, and go on with the next batch.

    The older one, since the newer may have been taken when the trouble had begun. The batches since then are not seen again,
    nor are the random numbers drawn again: the training takes another way from there.
    """
    def go_back() -> None:
        assert alarm.lens.box is not None
        alarm.lens.note_event("guard", f"{alarm}: went back to the state before step {alarm.lens.box.roll_back()}")

    alarm.lens.guards.at_the_end(go_back)  # when the black box has dumped the step
    if alarm.optimizer is None:
        return Cured("goes back to a snapshot")
    alarm.lens.guards.hide_gradients(alarm.optimizer)
    return Cured("skipped the update, and goes back to a snapshot")
