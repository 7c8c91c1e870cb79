"""Columnar replay: every race is stored once, and a transition is the number of its first row, its index.

* `memory`: the protocol of a run's memory, the memory that ships, and the device that keeps it;
* `ring_buffer`: the rows (one per state of a race) in preallocated columns;
* `transitions`: torchrl's storage of one side of the train/test split, its sampler, and views of rows;
* `episodes`, `minari_files`, `dataset_environments`: data sets of races in Minari's format.
"""
