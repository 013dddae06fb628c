//! Reader of recorded workloads: JSON lines with `timestamp` and `hash_ids`, plain or gzipped.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::generator::Block;

/// Error of a trace that can't be replayed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the message of each says what its fields are")]
pub enum TraceError {
    #[error("cannot read the trace {}: {why}", path.display())]
    Read { path: PathBuf, why: std::io::Error },
    #[error(
        "line {line} of the trace {} is not a request ({why}): each line is a JSON object with `timestamp` and `hash_ids`",
        path.display()
    )]
    Line { path: PathBuf, line: usize, why: serde_json::Error },
    #[error("the trace {} holds no request", path.display())]
    Empty { path: PathBuf },
}

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Request {
    /// Milliseconds since the start of the trace.
    pub timestamp: u64,
    /// Blocks of the prompt, in the order of the prompt.
    #[serde(rename = "hash_ids")]
    pub blocks: Vec<Block>,
}

impl AsRef<[Block]> for Request {
    fn as_ref(&self) -> &[Block] {
        &self.blocks
    }
}

/// Reads the requests of the trace at `path`, in order, without those that have no blocks.
pub fn read(path: &Path) -> Result<Vec<Request>, TraceError> {
    let failed = |why| TraceError::Read { path: path.to_owned(), why };
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    // gzip files begin with these two bytes; JSON begins with neither.
    let gzipped = file.fill_buf().map_err(failed)?.starts_with(&[0x1f, 0x8b]);
    let lines: Box<dyn BufRead> = if gzipped {
        Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(file)))
    } else {
        Box::new(file)
    };
    let mut requests = Vec::new();
    for (number, line) in lines.lines().enumerate() {
        let line = line.map_err(failed)?;
        if line.trim().is_empty() {
            continue;
        }
        let request: Request = serde_json::from_str(&line).map_err(|why| TraceError::Line {
            path: path.to_owned(),
            line: number + 1,
            why,
        })?;
        if !request.blocks.is_empty() {
            requests.push(request);
        }
    }
    if requests.is_empty() {
        return Err(TraceError::Empty { path: path.to_owned() });
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    const TEXT: &str = "{\"timestamp\": 0, \"input_length\": 6758, \"hash_ids\": [0, 1, 2]}\n\n{\"timestamp\": 12, \"hash_ids\": [0, 3]}\n";

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn gzipped(text: &str) -> Vec<u8> {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(text.as_bytes()).unwrap();
        gz.finish().unwrap()
    }

    fn mutate(valid: &[u8], rng: &mut SmallRng) -> Vec<u8> {
        /// Typical corruptions of numbers, lists and lines.
        const TELLING: [&str; 10] =
            ["-1", "0.5", "1e999", "18446744073709551616", "[", "[]", "{", "\"", "\n", "null"];
        let mut bytes = valid.to_vec();
        for _ in 0..rng.random_range(1..5) {
            let at = rng.random_range(0..=bytes.len());
            match rng.random_range(0..5) {
                0 => bytes.truncate(at),
                1 if at < bytes.len() => bytes[at] ^= rng.random_range::<u8, _>(1..=255),
                2 => bytes.insert(at, rng.random()),
                3 => {
                    let telling = TELLING[rng.random_range(0..TELLING.len())];
                    let replaced: usize = rng.random_range(0..8);
                    let end = bytes.len().min(at + replaced);
                    bytes.splice(at..end, telling.bytes());
                }
                _ => {
                    // Repeat a part.
                    let from = rng.random_range(0..=bytes.len());
                    let part = bytes[from..bytes.len().min(from + 64)].to_vec();
                    bytes.splice(at..at, part);
                }
            }
        }
        bytes
    }

    #[test]
    fn no_mutation_of_a_trace_panics_and_what_is_read_of_one_has_requests_with_blocks() {
        let mut rng = SmallRng::seed_from_u64(20);
        for valid in [TEXT.as_bytes().to_vec(), gzipped(TEXT)] {
            let (mut good, mut refused) = (0, 0);
            for _ in 0..3_000 {
                let bytes = mutate(&valid, &mut rng);
                match read(file(&bytes).path()) {
                    Ok(requests) => {
                        good += 1;
                        let full =
                            !requests.is_empty() && requests.iter().all(|request| !request.blocks.is_empty());
                        assert!(full, "{requests:?} from {bytes:?}");
                    }
                    Err(error) => {
                        refused += 1;
                        assert!(error.to_string().contains("the trace"), "{error}");
                    }
                }
            }
            assert!(good > 0 && refused > 0, "{good} were read, {refused} were refused");
        }
    }

    #[test]
    fn plain_and_gzipped_traces_read_alike() {
        let plain = read(file(TEXT.as_bytes()).path()).unwrap();
        let request = |timestamp, blocks| Request { timestamp, blocks };
        assert_eq!(plain, [request(0, vec![0, 1, 2]), request(12, vec![0, 3])]);
        assert_eq!(read(file(&gzipped(TEXT)).path()).unwrap(), plain);
    }

    #[test]
    fn what_is_not_a_trace_is_refused_with_its_line() {
        let err =
            read(file(b"{\"timestamp\": 0, \"hash_ids\": [0]}\n{\"hash_ids\": []}\n").path()).unwrap_err();
        assert!(err.to_string().contains("line 2") && err.to_string().contains("timestamp"), "{err}");
        assert!(matches!(read(file(b"\n").path()), Err(TraceError::Empty { .. })));
        assert!(read(Path::new("/no/such/trace")).unwrap_err().to_string().contains("/no/such/trace"));
    }
}
