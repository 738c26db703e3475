"""Trains models/strata-mini: a small qwen4exp model. Needs PyTorch; the package itself never imports this."""
