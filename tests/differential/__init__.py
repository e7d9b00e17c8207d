"""Differential test: our fit and a HAMi scheduler are asked the same questions in random worlds (see ``__main__``)."""
