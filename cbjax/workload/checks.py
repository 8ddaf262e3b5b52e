"""The one form in which a workload refuses a value: the field, the value and the remedy."""


def require(holds: object, field: str, value: object, remedy: str) -> None:
    """Raise ValueError naming `field`, `value` and `remedy` unless `holds`."""
    if not holds:
        raise ValueError(f"{field} = {value!r}: {remedy}")
