use std::fmt;
use std::str::FromStr;

/// Which RDMA devices a process uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RdmaDevices {
    /// None.
    Off,
    /// Every device that has an active port with an address.
    #[default]
    Auto,
    /// The devices with these names.
    Named(Vec<String>),
}

/// A text that names no devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no RDMA devices: use off, auto, or their names separated by commas, such as mlx5_0,mlx5_1"
)]
pub struct ParseRdmaDevicesError(String);

impl FromStr for RdmaDevices {
    type Err = ParseRdmaDevicesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => return Ok(Self::Off),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        let is_name = |name: &String| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        };
        let repeated = (1..names.len()).any(|nth| names[..nth].contains(&names[nth]));
        if names.iter().all(is_name) && !repeated {
            Ok(Self::Named(names))
        } else {
            Err(ParseRdmaDevicesError(text.to_owned()))
        }
    }
}

impl fmt::Display for RdmaDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::Named(names) => f.write_str(&names.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_shown() {
        for text in ["off", "auto", "mlx5_0", "mlx5_0,rxe0"] {
            assert_eq!(text.parse::<RdmaDevices>().unwrap().to_string(), text);
        }
        assert_eq!("a, b".parse(), Ok(RdmaDevices::Named(vec!["a".to_owned(), "b".to_owned()])));
        for text in ["", ",", "a,", "a b", "a,a"] {
            let error = text.parse::<RdmaDevices>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
