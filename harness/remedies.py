"""What to do about each kind of cause, in one sentence."""

from __future__ import annotations

from harness.findings import CauseKind

REMEDIES: dict[CauseKind, str] = {
    CauseKind.UNKNOWN: "read the code of the named module for values that come from outside it: "
    "globals, closures, clocks, files and hooks",
    CauseKind.REPEATED_UPDATE: "checkpoint the block through wcn_ckpt's "
    "GradientCheckpointingMixin, whose replays leave running statistics alone",
    CauseKind.MISSING_UPDATE: "let each logical forward update once, and restore nothing but what "
    "the replay itself wrote",
    CauseKind.STATE_WRITTEN: "keep the state through replays: preserve_module_buffers for a "
    "buffer, is_replaying() around the write of a Python attribute",
    CauseKind.STATE_REBOUND: "write into the buffer, or put the original object back after the "
    "replay: whoever holds the old one does not see the new one",
    CauseKind.STATE_MOVED: "let the replay see what its forward saw: declare the state of the "
    "boundary, pass the value as an argument, or run backward before it changes",
    CauseKind.RANDOM_DRAWN: "let the replay draw from the state of its forward: "
    "preserve_rng_state=True for torch's generators, a wcn_ckpt boundary for the others, or draw "
    "before the boundary and pass the numbers in",
    CauseKind.RANDOM_STATE: "put the generator back after a replay that draws from it, and draw "
    "nothing else in a replay",
    CauseKind.INPUT_CHANGED: "pass a copy to the block, or change the input after backward",
    CauseKind.DTYPE_DRIFT: "run the replay under the autocast state of its forward, as "
    "torch.utils.checkpoint does for what is around the boundary",
    CauseKind.ORDER_DRIFT: "make what the block computes depend only on its inputs, parameters and "
    "kept state, or pass the choice in as an argument",
    CauseKind.NONDETERMINISTIC: "use a deterministic kernel "
    "(torch.use_deterministic_algorithms(True)), or accept the measured noise as tolerance",
    CauseKind.NOT_REPEATABLE: "draw from generators that are seeded with the run, and let no state "
    "live on from one run to the next, such as a global, a cache or an iterator",
    CauseKind.MISSING_COLLECTIVE: "let every rank replay the same boundaries in the same order, or "
    "keep collectives out of what is replayed",
    CauseKind.BUFFER_SYNC: "switch the buffer broadcast off, declare the buffer as kept state on "
    "every rank, or run backward before the next forward",
    CauseKind.REDUCTION: "reduce each gradient once, after its last contribution: look at no_sync, "
    "at gradient hooks and at divisions by the number of ranks",
    CauseKind.GRADIENT_MISSING: "keep outputs attached, and let gradients flow to keyword and "
    "nested inputs",
    CauseKind.GRADIENT_UNEXPECTED: "leave requires_grad of parameters and inputs as it is",
    CauseKind.SAVED_TENSOR_WRITTEN: "do not write the original buffers during a replay; point the "
    "module at copies, as wcn_ckpt's boundaries do",
    CauseKind.GRAPH_FREED: "keep the graph with retain_graph=True wherever another pass follows",
    CauseKind.STATE_KEYS: "keep checkpointing state out of parameters and persistent buffers, and "
    "wrap modules without renaming them",
    CauseKind.NEVER_REPLAYED: "check that the boundary is enabled, in training mode, and runs with "
    "gradients on",
    CauseKind.UNWANTED_REPLAY: "look for a boundary that is switched off, nested or replayed twice",
    CauseKind.REENTRANT: "use the non-reentrant variant: use_reentrant=False",
    CauseKind.EXCEPTION: "read the traceback: replay the case",
    CauseKind.ORDINARY_RAISED: "make the step run without checkpointing first, or exclude this "
    "combination with its reason",
    CauseKind.PROCESS: "replay the case; what the rank printed last, or its stacks, stand "
    "under 'got'",
}
"""For every kind of cause."""
