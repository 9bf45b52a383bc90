"""Serving engines over HTTP: their addresses, keys, requests, streams and counters; launch commands and back. No torch, no Qt."""
