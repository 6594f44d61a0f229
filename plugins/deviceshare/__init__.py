"""deviceshare: GPUs shared between pods."""
