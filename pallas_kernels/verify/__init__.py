"""How much can be proved about the kernels on the machine at hand, layer by layer.

    python -m pallas_kernels.verify                      # all layers
    python -m pallas_kernels.verify compile ledger       # some

* semantics: every back end interpreted, against the definition (the tests of this folder).
* compile: every production shape through the real compilers for TPU and GPU, which need no chip.
* ledger: what those compilers report, compared with the numbers kept in `ledger.json`. Static: no
  figure in it is a time.
* device: numbers and speed on the GPU or TPU of this machine.

A layer whose packages or chip are not here is skipped and says so. The compilers come with the
extras `tpu` and `cuda` of this project.
"""
