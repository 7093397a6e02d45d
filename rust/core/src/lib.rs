#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod block;
mod config;
mod error;
mod free_stack;
mod graveyard;
mod ids;
mod pool;
mod stats;
mod sync;

pub use config::Config;
pub use error::Error;
pub use free_stack::FreeStack;
pub use graveyard::Graveyard;
pub use ids::{BlockId, SeqId};
pub use pool::BlockPool;
pub use stats::PoolStats;
