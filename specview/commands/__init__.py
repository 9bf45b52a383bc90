"""The command line: one file per command, plus what they share. No torch, llama_cpp or Qt at import."""
