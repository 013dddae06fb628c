//! Options of puts.

use std::time::Duration;

use mc_client::{Near, PinAction, PutMode, PutOptions as Options, Replication};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyAny;

use super::args;

/// Options of puts.
#[pyclass(frozen, module = "mc._native")]
pub(super) struct PutOptions(pub(super) Options);

#[pymethods]
impl PutOptions {
    #[new]
    #[pyo3(signature = (*, upsert = false, replicas = 1, strict = false, timeout = 30.0, preferred = Vec::new(), near = "any",
        data_type = 0, group = None, pin = "preserve", soft_pin = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        upsert: bool,
        replicas: u32,
        strict: bool,
        timeout: f64,
        preferred: Vec<String>,
        near: &str,
        data_type: u8,
        group: Option<&Bound<'_, PyAny>>,
        pin: &str,
        soft_pin: Option<f64>,
    ) -> PyResult<Self> {
        let near = match near {
            "any" => Near::Any,
            "client" => Near::Client,
            "each_other" => Near::EachOther,
            other => return Err(unknown("near", other, "any, client or each_other")),
        };
        let pin = match pin {
            "preserve" => PinAction::Preserve,
            "none" => PinAction::Disable,
            "soft" => {
                soft_pin.map_or(Ok(PinAction::SOFT), |left| seconds("soft_pin", left).map(PinAction::Soft))?
            }
            "hard" => PinAction::Hard,
            other => return Err(unknown("pin", other, "preserve, none, soft or hard")),
        };
        let mut options = Options::default()
            .with_mode(if upsert { PutMode::Upsert } else { PutMode::IfAbsent })
            .with_replicas(replicas)
            .with_replication(if strict { Replication::Strict } else { Replication::BestEffort });
        options.deadline = seconds("timeout", timeout)?;
        options.preferred_names = preferred;
        (options.near, options.pin, options.data_type) = (near, pin, data_type);
        options.group = group.map(args::name).transpose()?.unwrap_or_default().to_vec();
        Ok(Self(options))
    }
}

fn unknown(what: &str, given: &str, known: &str) -> PyErr {
    PyValueError::new_err(format!("{what}={given:?}: it is one of {known}"))
}

/// A number of seconds as a duration.
pub(super) fn seconds(what: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| PyValueError::new_err(format!("{what}={seconds}: not a number of seconds: {error}")))
}
