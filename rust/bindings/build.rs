//! Copies the C++ sources into the output folder, from where maturin takes them into the wheel; not
//! what only checks or emulates them.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let source = manifest.join("../../csrc");
    println!("cargo::rerun-if-changed={}", source.display());
    let target = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("csrc");
    if target.exists() {
        fs::remove_dir_all(&target)?;
    }
    copy(&source, &target)
}

fn copy(source: &Path, target: &Path) -> io::Result<()> {
    fs::create_dir_all(target)?;
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        if entry.file_name() == "check" || entry.file_name() == "emu" {
            continue;
        }
        let to = target.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
