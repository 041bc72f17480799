"""What happens when a boundary is run a second time, in backward.

`plan` finds the state a boundary holds, `redirect` points that state at stand-ins and puts the
originals back, `frame` is one logical forward together with all of its replays, and `flag` is the
thread-local answer to `is_replaying()`.
"""
