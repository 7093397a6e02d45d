"""Looseleaf under `transformers`: real models on a paged cache."""
