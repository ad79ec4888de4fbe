"""What tells runs apart: where they part, layer by layer, and by which traits."""
