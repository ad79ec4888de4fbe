"""Triton kernels; imported only where tensors go to them."""
