use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A disk that can really be filled: a small file system in memory, unmounted when dropped. Mounting it takes a right
/// that not every user has.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a disk of `size`, such as `96m`, on the folder `at`, which is created. Returns `None` if none can be
    /// mounted.
    pub fn mount(at: &Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(at).expect("a folder");
        let options = format!("size={size},mode=700");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", options.as_str(), "mc-test"]).arg(at).output();
        mounted.is_ok_and(|mounted| mounted.status.success()).then(|| Self(at.to_owned()))
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.0).expect("it is mounted");
        stat.f_bavail * stat.f_frsize
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Fills the disk, except for `leave` bytes.
    pub fn fill(&self, leave: u64) {
        let mut ballast =
            File::options().create(true).append(true).open(self.ballast()).expect("room for a name");
        while let more @ 1.. = self.free().saturating_sub(leave) {
            if ballast.write_all(&vec![0; more.min(1 << 20) as usize]).is_err() {
                // A process has taken the last free bytes.
                return;
            }
        }
    }

    /// Frees the space that [`Self::fill`] took.
    pub fn empty(&self) {
        std::fs::remove_file(self.ballast()).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, because a process may have files open on it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}
