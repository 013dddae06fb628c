//! Writes the valid inputs of every target where `cargo fuzz` begins from: `corpus/` beside this crate's manifest.

use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    for target in mc_fuzz::TARGETS {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
        fs::create_dir_all(&dir)?;
        for (number, input) in (target.valid)().iter().enumerate() {
            fs::write(dir.join(format!("valid-{number}")), input)?;
        }
    }
    Ok(())
}
