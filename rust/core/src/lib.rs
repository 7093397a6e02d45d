#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod admit;
mod batch;
mod block;
mod block_size;
mod config;
mod decode;
mod digest;
mod error;
mod fork;
mod free_stack;
mod gather;
mod graveyard;
mod holds;
mod idle;
mod ids;
mod invalidate;
#[cfg(all(test, not(looseleaf_loom)))]
mod life_cycle;
mod manager;
mod mutant;
mod oom;
mod places;
mod plain;
mod pool;
pub mod prefix;
mod prefix_cache;
mod publish;
mod push_list;
mod release;
mod room;
mod sequence;
mod state;
mod stats;
mod step;
mod sync;
mod table;
mod token_rows;
mod validate;

pub use admit::{Admission, Admit, LookupReason};
pub use batch::{BatchBuffers, BatchShape, BatchState};
pub use config::Config;
pub use error::Error;
pub use free_stack::FreeStack;
pub use gather::PageTable;
pub use graveyard::Graveyard;
pub use ids::{BlockId, SeqId};
pub use invalidate::Invalidated;
pub use manager::{BlockManager, Locked};
pub use oom::Oom;
pub use pool::BlockPool;
pub use room::MAX_VICTIMS;
pub use sequence::Lengths;
pub use stats::{PoolStats, Stats};
pub use step::{Counts, Reserve};
pub use table::BlockTables;
