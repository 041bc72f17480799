"""What happens when a boundary is run a second time, in backward.

`frame` is one logical forward with all of its replays. `plan` lists what a boundary holds;
`known` and `learning` tell which of it is written, in a table of `kinds`; `redirect` and `kept`
show a replay what its forward found and put the originals back, `rng` does so for generators.
`recollection` hands a replay what its forward computed together with other ranks.
`guard` and `overwrites` refuse a replay on moved ground, `audit` reports what nothing preserves,
and `threads` knows which replays run at this moment. `memory` keeps all of it between two forwards.
"""
