"""Codecs of what replicas send each other: one file each, and the error feedback around them."""
