"""Verify: is it safe to checkpoint a model that nobody here wrote, and if not, what to do.

`harness.verification.targets` turns what a person names into a model and its inputs,
`harness.verification.flags` and `harness.verification.boundaries` into a checkpointed one, and
`harness.verification.verify` runs the checklist and the axes over it and makes a report.
"""
