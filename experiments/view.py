"""A figure that the experiment's file asks for (`study.views`), with all its panels or some.

    python experiments/view.py results/admission/<hash> -o admission.pdf
    python experiments/view.py results/admission/<hash> --metrics preemptions ttft_s.p95
    python experiments/view.py results/priorities/<hash> --view curves -o priorities.pdf
"""

import json

from arguments import parser_of

from cbjax import collect_runs
from cbjax.report import save
from cbjax.report.views import get

if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--view", help="which of study.views; its first unless told")
    parser.add_argument("--metrics", nargs="+", help="panels, columns of collect_runs")
    given = parser.parse_args()
    views = json.loads((given.study / "study.json").read_text())["views"]
    view = given.view or next(iter(views), None)
    if view not in views:
        asked = ", ".join(views) or "none"
        raise SystemExit(f"--view {view}: {given.study} asks for {asked} (study.views)")
    options = views[view] | ({"metrics": given.metrics} if given.metrics else {})
    figure = get(view)(collect_runs(given.study), given.study, **options)
    print(save(figure, given.output or given.study / "figures" / f"{view}.png"))
