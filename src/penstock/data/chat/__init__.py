"""Conversations as tokens: chat templates, and which tokens are learned."""
