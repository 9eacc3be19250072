"""Compile every kernel of registered models ahead of time, on any machine.

Maps model geometries to what kernels are specialised on, asks the kernel table which kernels that
means, and fills the cache. Needs no device and no artifact.
"""
