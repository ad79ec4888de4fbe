"""One format, one file: ``recording.RunWriter`` writes what ``attach`` records, the others what ``export`` is asked for."""
