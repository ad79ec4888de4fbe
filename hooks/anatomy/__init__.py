"""Reads what a model is from its dataflow."""
