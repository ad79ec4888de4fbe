from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from stabilitylens.errors import BadInput
from stabilitylens.hooks.blackbox.randoms import put_back, random_state
from stabilitylens.hooks.guards._action import Alarm, Cured, action
from stabilitylens.hooks.guards._gradients import Hidden, norm_of

if TYPE_CHECKING:
    from stabilitylens.hooks.lens import Lens


def _check(lens: Lens, options: dict[str, Any]) -> None:
    if not callable(options.get("again")):
        raise BadInput("lens.on(…, 'rerun') needs again=, a function that computes the step's gradients once more, clipping included")
    lens.guards.keep_random_states()


@action("rerun", early=True, takes=("again",), check=_check)
def rerun(alarm: Alarm) -> str:
    """Compute the step's gradients a second time on the spot, with the random states of its first forward.

    A fault of the hardware does not repeat: the second run's gradients are then kept, no later guard on this alarm acts,
    and the record says so. What repeats is in the data or the weights: the first gradients are put back, and the next guard
    that was set acts. ``again=`` is a function that does everything between ``zero_grad()`` and ``optimizer.step()`` for
    the same batch; without a gradient scaler, whose scale it can't know.

    The idea is that of the rerun state machine of NVIDIA Megatron-LM.
    """
    assert alarm.optimizer is not None
    first, now = Hidden(alarm.optimizer), random_state(alarm.lens.guards.device)
    alarm.lens.guards.restore_random_states()
    try:
        with alarm.lens.guards.unwatched():
            alarm.options["again"]()
    except BaseException:
        first.put_back()
        raise
    finally:
        put_back(now, alarm.lens.guards.device)
    norm = norm_of(alarm.optimizer)
    if alarm.lens.guards.transient(alarm.kind, alarm.optimizer, norm):
        return Cured(f"did not repeat when run again (gradient norm {norm:.4g}): a transient fault, the second run's gradients are used")
    first.put_back()
    before = norm_of(alarm.optimizer)
    same = "to the bit" if norm == before or math.isnan(norm) and math.isnan(before) else f"with gradient norm {norm:.4g}, not {before:.4g}"
    return f"repeats when run again, {same}: it is in the data or the weights, not in the hardware"
