from stabilitylens.hooks.guards._action import Alarm, action


@action("warn")
def warn(alarm: Alarm) -> str:
    """Say it, as a ``LensWarning``: each alarm by itself, and at most ``at_most`` times."""
    alarm.lens.guard.say(f"{alarm}; training goes on")
    return "said it"
