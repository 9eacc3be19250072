"""The kernel table of the host device: one module for each op family."""
