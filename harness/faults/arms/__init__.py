"""Checkpointing that is broken on purpose, as arms: ``install(module) -> switch``."""
