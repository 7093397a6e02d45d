#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod config;
mod error;
mod ids;

pub use config::Config;
pub use error::Error;
pub use ids::{BlockId, SeqId};
