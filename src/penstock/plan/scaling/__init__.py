"""One run over many numbers of accelerators."""
