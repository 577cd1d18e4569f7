"""The dashboard."""
def dashboard() -> dict[str, object]:
    return {}
