"""Token budget x KV block size: what each pair costs, as heat maps.

    python experiments/budget_block_grid.py results/budget_block_grid/<hash> -o grid.pdf
"""

from arguments import figure_arguments

from cbjax import collect_runs
from cbjax.report import draw_grid, save

if __name__ == "__main__":
    study, output = figure_arguments("grid", __doc__)
    rows = collect_runs(study)
    print(save(draw_grid(rows, "kv.block_size", "policy.max_num_batched_tokens"), output))
