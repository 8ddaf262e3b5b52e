"""For all tests: no time limit per hypothesis example, and no window opened by a figure."""

import matplotlib
from hypothesis import settings

# The first example of a test may compile for seconds.
settings.register_profile("cbjax", deadline=None, print_blob=True)
settings.load_profile("cbjax")
matplotlib.use("Agg")
