"""The only code that touches a live model."""
