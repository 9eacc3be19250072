"""Programs that measure; docs/performance.md says with what result."""
