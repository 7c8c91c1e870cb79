"""Speed of each part, beside the classic way of doing it and beside the machine's floor.

Each part is a module with `measure(options, machine) -> list[Figure]`. `measuring` has clock, figures and report;
`senders` are the processes that send races; `classic_*` do the work as such trainers are usually written.
"""
