use std::fmt::{self, Write as _};
use std::str::FromStr;

/// How a process uses its RDMA devices.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaOptions {
    /// Traffic class of the packets, which is their DSCP times 4 on RoCE v2. Default 0.
    pub traffic_class: u8,
    /// Service level, 0 to 15: the priority on InfiniBand and RoCE v1. Default 0.
    pub service_level: u8,
    /// Index of the address to use at each device. Default: the best one.
    pub gid_index: Option<u8>,
    /// Partition key. Default: the first of the port.
    pub pkey: Option<u16>,
    /// Number of the port to use at each device. Default: the first active one with an address.
    pub port: Option<u8>,
    /// Exponent of the time after which a packet is sent again, 1 to 31: 4.096 us times 2 to this. Default 14, which is 67 ms. A
    /// larger one suits lossy or long networks; a client waits 0.3 s for a sign of the store.
    pub timeout: u8,
    /// Maximum number of queue pairs of a store. Default 512.
    pub pairs: usize,
}

/// A text that is no list of options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no list of RDMA options: {why}; use default, or some of traffic-class=0..255, service-level=0..15, \
     gid-index=N, pkey=0xN, port=N, timeout=1..31, pairs=N, separated by commas"
)]
pub struct ParseRdmaOptionsError {
    text: String,
    why: String,
}

impl Default for RdmaOptions {
    fn default() -> Self {
        Self {
            traffic_class: 0,
            service_level: 0,
            gid_index: None,
            pkey: None,
            port: None,
            timeout: 14,
            pairs: 512,
        }
    }
}

impl RdmaOptions {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = |least: u64, most: u64| {
            let hexadecimal = value.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
            let number = hexadecimal.unwrap_or_else(|| value.parse());
            let number = number.ok().filter(|number| (least..=most).contains(number));
            number.ok_or_else(|| format!("{name} can't be {value:?}"))
        };
        let byte = |least, most| number(least, most).map(|number| number as u8);
        match name {
            "traffic-class" => self.traffic_class = byte(0, 255)?,
            "service-level" => self.service_level = byte(0, 15)?,
            "gid-index" => self.gid_index = Some(byte(0, 255)?),
            "pkey" => self.pkey = Some(number(1, 0xffff)? as u16),
            "port" => self.port = Some(byte(1, 255)?),
            "timeout" => self.timeout = byte(1, 31)?,
            "pairs" => self.pairs = number(1, 1 << 20)? as usize,
            _ => return Err(format!("there is no option {name:?}")),
        }
        Ok(())
    }
}

impl FromStr for RdmaOptions {
    type Err = ParseRdmaOptionsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut options = Self::default();
        if text == "default" {
            return Ok(options);
        }
        for option in text.split(',') {
            let (name, value) = option.trim().split_once('=').unwrap_or((option, ""));
            let set = options.set(name, value);
            set.map_err(|why| ParseRdmaOptionsError { text: text.to_owned(), why })?;
        }
        Ok(options)
    }
}

impl fmt::Display for RdmaOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let mut text = String::new();
        let mut add = |name: &str, value: Option<u64>| match value {
            Some(value) if text.is_empty() => write!(text, "{name}={value}"),
            Some(value) => write!(text, ",{name}={value}"),
            None => Ok(()),
        };
        let unless = |value: u64, default: u64| (value != default).then_some(value);
        add("traffic-class", unless(self.traffic_class.into(), default.traffic_class.into()))?;
        add("service-level", unless(self.service_level.into(), default.service_level.into()))?;
        add("gid-index", self.gid_index.map(Into::into))?;
        add("pkey", self.pkey.map(Into::into))?;
        add("port", self.port.map(Into::into))?;
        add("timeout", unless(self.timeout.into(), default.timeout.into()))?;
        add("pairs", unless(self.pairs as u64, default.pairs as u64))?;
        f.write_str(if text.is_empty() { "default" } else { &text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_and_shown() {
        let all = "traffic-class=106,service-level=3,gid-index=3,pkey=32769,port=2,timeout=18,pairs=2048";
        for text in ["default", "gid-index=0", "timeout=20,pairs=16", all] {
            assert_eq!(text.parse::<RdmaOptions>().unwrap().to_string(), text);
        }
        assert_eq!("pkey=0x8001".parse::<RdmaOptions>().unwrap().pkey, Some(0x8001));
        for (text, why) in [
            ("", "there is no option \"\""),
            ("dscp=3", "there is no option \"dscp\""),
            ("timeout", "timeout can't be \"\""),
            ("timeout=0", "timeout can't be \"0\""),
            ("timeout=32", "timeout can't be \"32\""),
            ("traffic-class=256", "traffic-class can't be \"256\""),
            ("service-level=16", "service-level can't be \"16\""),
            ("gid-index=256", "gid-index can't be \"256\""),
            ("pkey=0x10000", "pkey can't be \"0x10000\""),
            ("pkey=0", "pkey can't be \"0\""),
            ("port=-1", "port can't be \"-1\""),
            ("port=0x", "port can't be \"0x\""),
            ("port=0", "port can't be \"0\""),
            ("pairs=0", "pairs can't be \"0\""),
            ("gid-index=1,pairs=all", "pairs can't be \"all\""),
        ] {
            let error = text.parse::<RdmaOptions>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{text:?} is no list")) && error.contains(why), "{error}");
        }
    }
}
