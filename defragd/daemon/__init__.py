"""The composition root: builds adapters, controllers and servers, and nothing else does.

`serve` runs the daemon on Kubernetes, `demo` on the embedded simulated cluster; both are imported late by the command
line, so that ``defragd --help`` stays quick.
"""
