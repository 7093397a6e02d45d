//! The tree against a plain model of its documentation, and its rules one by one.
//!
//! - `oracle`: what is published, as a map from whole prefixes to blocks;
//! - `operation`: operations as numbers that mean something in any state;
//! - `machine`: one operation on tree and oracle, then the comparison.

mod collisions;
mod corruption;
mod coverage;
mod fixture;
mod hashing;
mod machine;
mod operation;
mod oracle;
mod recycling;
mod roots;
mod shape;
mod state_machine;
mod walks;
