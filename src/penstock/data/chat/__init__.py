"""Chat templates, and conversations as tokens with a mask of those that are learned."""
