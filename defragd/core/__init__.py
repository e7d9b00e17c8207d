"""The decision core: values in, values out. Standard library, numpy and networkx only; no clock, I/O, log or thread."""
