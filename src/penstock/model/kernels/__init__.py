"""Triton kernels; imported where a tensor is on a GPU, since only CUDA builds have Triton."""
