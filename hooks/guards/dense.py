from stabilitylens.hooks.cadence import DENSE
from stabilitylens.hooks.guards._action import Alarm, action


@action("dense")
def dense(alarm: Alarm) -> str:
    """Sample each of the next 20 steps, whatever ``every=`` says."""
    alarm.lens.guards.dense_until = alarm.step + DENSE
    return f"samples every step up to {alarm.step + DENSE}"
