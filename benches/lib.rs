//! What the benchmarks of the Rust core share; the benchmarks live beside this file, one per subject.

pub mod chained;
pub mod clock;
pub mod engine;
pub mod machine;
pub mod random;
pub mod table;
