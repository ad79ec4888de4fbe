"""Guards: what a lens does about trouble while the training runs, only where it was asked to. One action a file."""

from stabilitylens.hooks.guards._action import ACTIONS, Act, Action, Alarm, action
from stabilitylens.hooks.guards._guards import KINDS, Guards

__all__ = ["ACTIONS", "KINDS", "Act", "Action", "Alarm", "Guards", "action"]
