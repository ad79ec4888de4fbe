"""The TensorBoard plugin: a tab that draws recordings layer by step, from our own files at full resolution."""
