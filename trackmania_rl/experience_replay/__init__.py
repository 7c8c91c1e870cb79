"""Columnar replay: every race is stored once, and a transition is the first row's number, the index.

* `memory`: the protocol for a run's memory, the memory that ships, and the device that keeps it;
* `ring_buffer`: the rows (one per race state) in preallocated columns;
* `transitions`: torchrl's storage for one side of the train/test split, the sampler, and row views;
* `episodes`, `minari_files`, `dataset_environments`: race data sets in Minari's format.
"""
