"""Stages of scripts/gpu-check."""
