"""The API server as an adapter: the only package that imports kubernetes, urllib3 and msgspec."""
