"""Knows the accelerators: GPUs through NVML, processor cores as stand-ins."""
