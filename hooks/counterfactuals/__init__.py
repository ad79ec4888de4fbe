"""Suspected cures, tried on a dumped incident from the snapshot before it. One counterfactual a file."""

from stabilitylens.hooks.counterfactuals._member import COUNTERFACTUALS, Counterfactual, NotApplicable, counterfactual
from stabilitylens.hooks.counterfactuals._running import counterfactuals
from stabilitylens.hooks.counterfactuals._table import Row, Table
from stabilitylens.hooks.counterfactuals._trial import Trial

__all__ = ["COUNTERFACTUALS", "Counterfactual", "NotApplicable", "Row", "Table", "Trial", "counterfactual", "counterfactuals"]
