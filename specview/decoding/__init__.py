"""The algorithm: numbers in, Rounds out. Imports no torch, llama_cpp or Qt."""
