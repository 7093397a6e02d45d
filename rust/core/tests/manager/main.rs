//! The manager against a plain model of its documentation, and its contracts one by one.
//!
//! - `oracle`: what every call must answer and leave behind, written from the documentation;
//! - `memory`: a KV cache whose cells say who wrote them, so that a fault of copy-on-write shows as wrong content;
//! - `buffers`: the batch buffers, built from scratch;
//! - `machine`: one operation on all of them, then the comparison.

#![cfg(not(looseleaf_loom))]

mod batches;
mod buffers;
mod copy_on_write;
mod coverage;
mod engine;
mod expected;
mod handles;
mod limits;
mod machine;
mod memory;
mod operation;
mod oracle;
mod state_machine;
mod tables;
