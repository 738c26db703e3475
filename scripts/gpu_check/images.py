"""x"""
def make() -> int:
    return 0
