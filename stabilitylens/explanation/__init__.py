"""What else happened around an incident: who moved first, what coincided, and what the log cannot show."""

from stabilitylens.explanation._blind import cannot_show
from stabilitylens.explanation._coincidence import Coincidence, reach
from stabilitylens.explanation._coincidences import coincidences
from stabilitylens.explanation._context import Context, contexts
from stabilitylens.explanation._movements import Movement, movements

__all__ = ["Coincidence", "Context", "Movement", "cannot_show", "coincidences", "contexts", "movements", "reach"]
