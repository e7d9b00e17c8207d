"""defragd: a descheduler and defragmenter for GPUs shared by HAMi."""

__version__ = "0.1.0"
