"""Lines that tests want printed at the end, whether or not they passed."""

import pytest

NAME = "counted"


@pytest.fixture
def report_line(record_property):
    """A function that keeps a line for the terminal summary, also from another process."""
    return lambda line: record_property(NAME, line)


def pytest_terminal_summary(terminalreporter):
    lines = [
        line
        for kind in ("passed", "failed") for report in terminalreporter.getreports(kind)
        for name, line in report.user_properties if name == NAME and report.when == "call"
    ]
    if lines:
        terminalreporter.section("policies")
        for line in sorted(lines):
            terminalreporter.write_line(line)
