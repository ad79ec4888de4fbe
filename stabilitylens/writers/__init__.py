"""One format, one file. ``recording.RunWriter`` writes what ``attach`` records."""
