"""Blocks that make a replay go wrong, or show that one did, as users were found to write them."""
