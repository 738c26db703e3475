"""Builds the golden files of tests/goldens with transformers as the reference (docs/goldens.md)."""
