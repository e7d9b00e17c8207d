"""A stand-in for HAMi's scheduler extender and webhook (NVIDIA), written from the protocol for the tests alone.

It shares nothing with the product on purpose: a mistake that both would make hides itself. It is judged by the recorded
decisions of the real scheduler (`tests/ground/hami/test_*`, `tests/data/hami-traces`).
"""
