//! The rules of the tree, one by one.

mod collisions;
mod corruption;
mod fixture;
mod hashing;
mod recycling;
mod roots;
mod shape;
mod walks;
