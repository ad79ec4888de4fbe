from stabilitylens.errors import TrainingStopped
from stabilitylens.hooks.guards._action import Alarm, action


@action("raise")
def stop(alarm: Alarm) -> None:
    """Raise ``TrainingStopped`` out of the loop: before the update where the trouble can be seen by then.

    The weights are then those of before the step, and a checkpoint saved from them is sound.
    """
    when = "before the update" if alarm.optimizer is not None else "after the update"
    alarm.lens.note_event("guard", f"{alarm}: stopped the training {when}")
    raise TrainingStopped(f"{alarm}: the guard set by lens.on({alarm.kind!r}, 'raise') stops the training {when}")
