"""Speed of each part, beside the classic way of doing it and beside the machine's floor.

`python -m benchmarks.performance` measures all parts and prints a table; `--help` lists the options.

* `measuring`: clock and figures; `machine`: rates of the processor; `report`: table and JSON;
* one module for each part, with a function `measure(options, machine) -> list[Figure]`;
* `races`, `senders`: races to send and to store, and the processes that send them;
* `classic_*`: the yardstick, the way such trainers are usually written. Ratios are taken in turns, in the same run.
"""
