"""The bytes of a PyTorch training step on a given NVIDIA card, computed on a CPU."""

__version__ = "0.1.0"
