"""Grids of formats in shared memory."""

# Packed<T>::kTableWords of kernels/packed*.cuh
TABLE_WORDS = {"IQ3_XXS": 256, "IQ2_S": 2048, "IQ2_XXS": 512, "IQ2_XS": 1024, "IQ3_S": 512}
