"""inferc beside the engines a user would pick instead on a CPU: `python bench/peers.py --help`.

`catalog` says what is compared, `environments` and `models` build it, `worker` runs one engine in
its own environment, `session` drives the workers in turn, `rows` and `report` write what came out.
"""
