"""Columnar replay: every race is stored once, and a transition is the first row's number, the index.

* `memory`: a run's memory;
* `ring_buffer`: its rows, one per race state;
* `transitions`: torchrl's storages for training and test, the sampler, and row views;
* `episodes`, `minari_files`, `dataset_environments`: race data sets in Minari's format.
"""
