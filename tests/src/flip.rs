use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;

/// Inverts one byte of a segment in the memory of the process `pid`.
pub(crate) fn flip(pid: u32, segment: u32, offset: u64) -> io::Result<()> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let Some(at) = address(&maps, segment, offset) else {
        let why = format!("process {pid} maps no segment {segment} with a byte at {offset}");
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    };
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let mut byte = [0];
    memory.read_exact_at(&mut byte, at)?;
    memory.write_all_at(&[!byte[0]], at)
}

/// Returns the address of a segment's byte in a process, by its `/proc/PID/maps`.
fn address(maps: &str, segment: u32, offset: u64) -> Option<u64> {
    // 7f1c00000000-7f1c04000000 rw-s 00000000 00:01 1234    /memfd:mc-segment-0 (deleted)
    let name = format!("/memfd:mc-segment-{segment}");
    maps.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (addresses, file_offset) = (fields.next()?, fields.nth(1)?);
        (fields.nth(2)? == name).then_some(())?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = addresses.split_once('-')?;
        let (start, end) = (hex(start)?, hex(end)?);
        let at = start.checked_add(offset.checked_sub(hex(file_offset)?)?)?;
        (at < end).then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_of_a_segment_is_found_in_the_mapping_that_holds_it() {
        let maps = "\
            55d0c0000000-55d0c0001000 r-xp 00000000 08:01 99      /usr/bin/mc-store\n\
            7f1c00000000-7f1c00002000 rw-s 00000000 00:01 1234    /memfd:mc-segment-0 (deleted)\n\
            7f1c10000000-7f1c10002000 rw-s 00002000 00:01 1234    /memfd:mc-segment-0 (deleted)\n\
            7f1c20000000-7f1c20002000 rw-s 00000000 00:01 1235    /memfd:mc-segment-1 (deleted)\n\
            7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0 \n";
        assert_eq!(address(maps, 0, 1), Some(0x7f1c_0000_0001));
        assert_eq!(address(maps, 0, 0x2001), Some(0x7f1c_1000_0001));
        assert_eq!(address(maps, 1, 0), Some(0x7f1c_2000_0000));
        assert_eq!((address(maps, 0, 0x4000), address(maps, 2, 0)), (None, None));
    }
}
