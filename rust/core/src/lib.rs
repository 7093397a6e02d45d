#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod batch;
mod block;
mod block_size;
mod config;
mod decode;
mod error;
mod free_stack;
mod graveyard;
mod holds;
mod ids;
mod manager;
mod places;
mod pool;
pub mod prefix;
mod sequence;
mod stats;
mod step;
mod sync;
mod table;
mod token_rows;
mod validate;

pub use batch::{BatchBuffers, BatchShape, BatchState};
pub use config::Config;
pub use error::Error;
pub use free_stack::FreeStack;
pub use graveyard::Graveyard;
pub use ids::{BlockId, SeqId};
pub use manager::{Admission, BlockManager, Locked, LookupReason};
pub use pool::BlockPool;
pub use sequence::Lengths;
pub use stats::{PoolStats, Stats};
pub use step::{Counts, Reserve};
pub use table::BlockTables;
