"""Lines that tests want printed at the end, whether or not they passed."""

import pytest

_LINES: list[str] = []


@pytest.fixture
def report_line():
    """A function that keeps a line for the terminal summary."""
    return _LINES.append


def pytest_terminal_summary(terminalreporter):
    if _LINES:
        terminalreporter.section("policies")
        for line in _LINES:
            terminalreporter.write_line(line)
