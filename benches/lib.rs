//! Benchmarks of the Rust core live beside this file, one per subject.
