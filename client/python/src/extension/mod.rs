//! The classes and functions of the module.

mod args;
mod calls;
mod client;
mod engine;
mod error;
mod lines;
mod logs;
mod memory;
mod options;
mod process;
mod queue;
mod registered;
mod results;
mod sessions;
mod store;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The compiled part of the package `mc`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    process::notice_forks();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<client::Client>()?;
    module.add_class::<store::Store>()?;
    module.add_class::<engine::Engine>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<memory::BufferHandle>()?;
    module.add_class::<memory::Export>()?;
    module.add_class::<options::PutOptions>()?;
    module.add_class::<sessions::GetSession>()?;
    module.add_class::<sessions::PutSession>()?;
    module.add_class::<queue::Queue>()?;
    module.add_class::<client::ListPosition>()?;
    module.add_function(wrap_pyfunction!(memory::allocate, module)?)?;
    module.add_function(wrap_pyfunction!(memory::gpu_of, module)?)?;
    module.add_function(wrap_pyfunction!(memory::wait_for_stream, module)?)?;
    module.add_function(wrap_pyfunction!(store::stop_stores, module)?)?;
    module.add_function(wrap_pyfunction!(codes, module)?)?;
    module.add_function(wrap_pyfunction!(parse_size, module)?)?;
    module.add_function(wrap_pyfunction!(logs::start_logs, module)?)?;
    module.add_function(wrap_pyfunction!(logs::next_logs, module)?)?;
    module.add_function(wrap_pyfunction!(logs::stop_logs, module)?)
}

/// Returns every result code by name.
#[pyfunction]
fn codes(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let codes = PyDict::new(py);
    mc_client::Code::ALL.iter().try_for_each(|code| codes.set_item(code.name(), *code as i32))?;
    Ok(codes)
}

/// Returns the bytes of a size such as "4gb", "16mib" or "1024".
#[pyfunction]
fn parse_size(text: &str) -> PyResult<u64> {
    args::parsed::<mc_client::ByteSize>("size", text).map(|size| size.0)
}
