"""What checks types and array shapes under pytest: an int will do for a float, as in Python's own numeric tower."""

from io import TextIOBase
from typing import TextIO

from beartype import BeartypeConf, FrozenDict, beartype

#: beartype takes the protocol of TextIO so literally that a StringIO is none
check = beartype(conf=BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({TextIO: TextIOBase})))
