"""Tokenizers: loading, training, fast engines, packing of documents into sequences."""
