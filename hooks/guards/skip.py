from stabilitylens.hooks.guards._action import Alarm, action


@action("skip", early=True)
def skip(alarm: Alarm) -> str:
    """Skip the optimizer's step, to the bit as if it had never been asked for: weights, moments and step counts stay.

    Gradients are hidden from the optimizer while it steps, and torch's optimizers leave a parameter without a gradient
    alone: nothing is multiplied by zero, so NaN goes nowhere. A learning-rate schedule moves on, as it does when a
    gradient scaler skips.
    """
    assert alarm.optimizer is not None
    alarm.lens.guards.hide_gradients(alarm.optimizer)
    return "skipped the update"
