"""The six points to check before a model is trained with checkpointing, as data and as code.

They are those of the WarpConvNet guide's verification checklist. `harness.checklist.points` says
what they are, `harness.checklist.measurement` measures one training step of both arms on a rank,
and `harness.checklist.answers` makes an answer to each point out of rows and measurements.
"""
