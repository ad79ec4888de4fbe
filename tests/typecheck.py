"""What checks types and array shapes under pytest: an int will do for a float, as in Python's own numeric tower."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
