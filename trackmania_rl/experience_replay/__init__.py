"""Columnar replay: every race is stored once, and a transition is the number of its first row, its index.

* `placement` chooses the device that keeps the memory;
* `ring_buffer` holds the rows (one per state of a race) in preallocated columns;
* `transition_storage` is torchrl's storage and writer of one side of the train/test split;
* `proportional_sampler` is torchrl's sampler: it draws transitions evenly or by priority;
* `mini_race` cuts what was drawn to mini-races, the batches that are trained on;
* `experience` is one transition in full, for people and tests.
"""
