"""Runs on disk: trace files (JSON Lines), result documents (JSON) and tables (CSV, Markdown)."""
