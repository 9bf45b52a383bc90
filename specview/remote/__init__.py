"""Serving engines over HTTP: their addresses, keys, requests, streams and counters. No torch, no Qt."""
