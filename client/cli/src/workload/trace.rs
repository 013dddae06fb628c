//! A recorded workload: JSON lines with `timestamp` and `hash_ids`, plain or gzipped.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::generator::Block;

/// Why a trace can't be replayed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
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

#[derive(Deserialize)]
struct Line {
    /// Milliseconds since the start. Required, so that another kind of file is refused; requests are replayed in
    /// order, as fast as the pool takes them.
    #[serde(rename = "timestamp")]
    _timestamp: u64,
    hash_ids: Vec<Block>,
}

/// The requests of the trace at `path`, in its order; requests without blocks are left out.
pub(crate) fn read(path: &Path) -> Result<Vec<Vec<Block>>, TraceError> {
    let failed = |why| TraceError::Read { path: path.to_owned(), why };
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    // gzip's two magic bytes; JSON begins with neither.
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
        let request: Line = serde_json::from_str(&line).map_err(|why| TraceError::Line {
            path: path.to_owned(),
            line: number + 1,
            why,
        })?;
        if !request.hash_ids.is_empty() {
            requests.push(request.hash_ids);
        }
    }
    if requests.is_empty() {
        return Err(TraceError::Empty { path: path.to_owned() });
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const TEXT: &str = "{\"timestamp\": 0, \"input_length\": 6758, \"hash_ids\": [0, 1, 2]}\n\n{\"timestamp\": 12, \"hash_ids\": [0, 3]}\n";

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn plain_and_gzipped_traces_read_alike() {
        let plain = read(file(TEXT.as_bytes()).path()).unwrap();
        assert_eq!(plain, [vec![0, 1, 2], vec![0, 3]]);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(TEXT.as_bytes()).unwrap();
        assert_eq!(read(file(&gz.finish().unwrap()).path()).unwrap(), plain);
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
