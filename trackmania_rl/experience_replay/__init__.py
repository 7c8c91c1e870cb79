"""Columnar replay: every race is stored once, and a transition is a row number.

* `placement` chooses the device that keeps the memory;
* `row_ring` holds the rows (one per state of a race) in a ring of preallocated columns;
* `transition_storage` is torchrl's view of one side (train or test): the row numbers that may be drawn from it;
* `proportional_sampler` draws them, evenly or by priority;
* `mini_race` says what a drawn batch is, `mini_race_cut` makes it, `frame_history` adds older frames to its images;
* `experience` shows one transition in full, for people and tests.
"""
