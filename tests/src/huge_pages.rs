use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of the huge pages that this machine has set apart.
const NUMBER: &str = "/proc/sys/vm/nr_hugepages";

/// A file system of huge pages. They are set apart for it, and given back when it is dropped. That takes rights that not every user has.
#[derive(Debug)]
pub struct HugePages {
    at: PathBuf,
    /// Pages that were set apart before.
    before: u64,
}

impl HugePages {
    /// Mounts a file system of so many pages on the folder `at`, which is created. Returns `None` where that can't be done.
    pub fn mount(at: &Path, pages: u64) -> Option<Self> {
        let number = || std::fs::read_to_string(NUMBER).ok()?.trim().parse::<u64>().ok();
        let before = number()?;
        std::fs::create_dir_all(at).expect("a folder");
        let this = Self { at: at.to_owned(), before };
        // Free memory may be in pieces. Where this is refused, the number below tells.
        let _ = std::fs::write("/proc/sys/vm/compact_memory", "1");
        std::fs::write(NUMBER, (before + pages).to_string()).ok()?;
        // Fewer are set apart where the memory is in pieces.
        let options = format!("size={}M,mode=700", pages * 2);
        let mounted =
            Command::new("mount").args(["-t", "hugetlbfs", "-o", &options, "mc-test"]).arg(at).output();
        (number()? >= before + pages && mounted.is_ok_and(|mounted| mounted.status.success())).then_some(this)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // Lazily, because a process may have files open on it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).output();
        let _ = std::fs::write(NUMBER, self.before.to_string());
    }
}
