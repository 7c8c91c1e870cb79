"""How fast every part is, beside the classic way of doing it and beside what this machine could do at best.

`python -m benchmarks.performance` measures all parts and prints a table; `--help` tells the rest.

* `measuring`: the clock, and what a figure is; `machine`: what the processor can do; `report`: table and JSON;
* `replay`, `memory`, `transport`, `weights`, `inference`, `learner_step`, `simulation`, `client`, `in_process_games`,
  `training`, `scaling`: one part each, a function `measure(options, machine) -> list[Figure]`;
* `races`, `senders`: races to send and to store, and the processes that send them;
* `classic_*`: the yardstick, the way such trainers are usually written. Ratios are taken in turns, in the same run.
"""
