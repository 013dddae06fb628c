//! The cost of TLS: the same load on pools that differ in their security alone, in turn.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use mc_console::{Ended, Global, Interrupts, Output, Progress, connect};
use mc_testbed::{Security, Shape};
use mc_types::Span;
use serde::Serialize;

use super::pool::Pool;
use super::report::{Counts, Report};
use super::{Kind, Load, LoadArgs};
use crate::latencies::{median, round};
use crate::machine::{Machine, mib_s};

/// Times that each pool is measured. The pools take turns, in another order each time, so that a busy moment of the machine hits all
/// of them.
const ROUNDS: u32 = 5;
/// Bytes that the cipher encrypts at a time: the greatest record of TLS.
const RECORD: usize = 16 << 10;
/// Duration of the measurement of the cipher.
const CIPHER_FOR: Duration = Duration::from_millis(100);
/// Goals, relative to the pool without TLS: the least share of the calls by TLS, the longest p50 of a put of one small object, the
/// least share of bytes with proofs alone.
const CALLS_GOAL: f64 = 0.9;
const PUT_GOAL: f64 = 1.05;
const PROOFS_GOAL: f64 = 0.98;
/// Goal: the least share of what plain bytes and the cipher allow, one after the other.
const BYTES_GOAL: f64 = 0.85;
/// Size up to which objects are small: the calls cost more than their bytes.
const SMALL: u64 = 4 << 10;

/// A pool under the load.
struct Side {
    name: &'static str,
    pool: Pool,
    load: Arc<Load>,
    rounds: Vec<(Counts, Duration)>,
}

impl Side {
    /// Operations a second in each round.
    fn rates(&self) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(|(counts, took)| counts.ops as f64 / took.as_secs_f64())
    }

    /// Median time of a call in each round.
    fn medians(&self) -> impl Iterator<Item = f64> {
        self.rounds.iter().map(|(counts, _)| counts.latencies.quantile_us(0.5))
    }

    fn report(&self, kind: Kind, args: &LoadArgs, machine: Machine) -> Report {
        let (mut all, mut took) = (Counts::new(), Duration::ZERO);
        for (counts, time) in &self.rounds {
            all.add(counts);
            took += *time;
        }
        Report::new(kind.name(), args, self.load.keys, &all, took, machine, kind.moves_bytes())
    }
}

/// Result of a comparison.
#[derive(Debug, Serialize)]
struct Compared {
    bench: &'static str,
    rounds: u32,
    plain: Report,
    /// TLS for calls alone: grants are proven, and bytes go in the clear.
    #[serde(skip_serializing_if = "Option::is_none")]
    proofs: Option<Report>,
    tls: Report,
    /// Operations with proofs relative to plain ones; the median of the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    proofs_ratio: Option<f64>,
    /// Operations by TLS relative to plain ones; the median of the rounds.
    tls_ratio: f64,
    /// Median time of a call by TLS relative to a plain one; the median of the rounds.
    tls_p50_ratio: f64,
    /// AES-128-GCM, which TLS here prefers, on one core and 16 KiB at a time.
    cipher_mib_s: f64,
    /// Bound for TLS: a plain transfer followed by encryption on one core, 1/(1/plain + 1/cipher).
    #[serde(skip_serializing_if = "Option::is_none")]
    both_mib_s: Option<f64>,
    /// Bytes by TLS relative to that.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_both_ratio: Option<f64>,
}

pub(super) async fn compare(
    kind: Kind,
    global: &Global,
    args: &LoadArgs,
    shape: &Shape,
    output: Output,
    interrupts: &mut Interrupts,
) -> Result<Ended> {
    if global.masters_flag().is_some() {
        bail!("--tls compares pools of its own: leave out --masters");
    }
    let mut global = global.clone();
    // A store that requires TLS offers no shared memory, and bytes over RDMA are not encrypted.
    global.transport = mc_client::Transports::Tcp;
    let securities: &[Security] = match kind.moves_bytes() {
        true => &[Security::Plain, Security::Proofs, Security::Tls],
        false => &[Security::Plain, Security::Tls],
    };
    let each = Span(args.duration.0 / ROUNDS);
    let begun = async {
        let mut sides = Vec::new();
        for security in securities {
            let shape = Shape { security: *security, ..shape.clone() };
            let pool = Pool::open(&global, &shape).await?;
            let client = connect::client_at(&pool.masters(), &global).await?;
            let load = Load::new(kind, LoadArgs { duration: each, ..args.clone() }, client)?;
            if kind != Kind::Put {
                load.populate().await?;
            }
            sides.push(Side { name: security.name(), pool, load: Arc::new(load), rounds: Vec::new() });
        }
        let disk = sides[0].pool.disk(args.data_dir.as_deref());
        anyhow::Ok((Machine::measure(disk).await?, sides))
    };
    let (machine, mut sides) = interrupts.until(begun).await??;
    let mut ciphers = Vec::new();
    let measured = async {
        for round in 0..ROUNDS as usize {
            ciphers.push(tokio::task::spawn_blocking(cipher).await??);
            for at in 0..sides.len() {
                let at = (at + round) % sides.len();
                let side = &mut sides[at];
                let mut progress = Progress::new(side.name, each.0.as_millis() as u64);
                let round = side.load.calls(kind, &mut progress).await?;
                drop(progress);
                side.rounds.push(round);
            }
        }
        anyhow::Ok(())
    };
    interrupts.until(measured).await??;
    let compared = Compared::new(kind, args, &sides, machine, &ciphers).context("no round was measured")?;
    let is_well = [Some(&compared.plain), compared.proofs.as_ref(), Some(&compared.tls)]
        .into_iter()
        .flatten()
        .all(|report| report.failed == 0 && report.wrong == 0);
    output.result(&compared, || compared.table());
    Ok(if is_well { Ended::Well } else { Ended::Negative })
}

impl Compared {
    fn new(kind: Kind, args: &LoadArgs, sides: &[Side], machine: Machine, ciphers: &[f64]) -> Option<Self> {
        let (plain, tls) = (sides.first()?, sides.last()?);
        let proofs = if sides.len() > 2 { sides.get(1) } else { None };
        let report = |side: &Side| side.report(kind, args, machine);
        let mib_s = |side: &Side| {
            let size = args.size.0 as f64 / f64::from(1 << 20);
            side.rates().map(move |rate| rate * size).collect::<Vec<_>>()
        };
        let both =
            mib_s(plain).into_iter().zip(ciphers).map(|(plain, cipher)| 1.0 / (1.0 / plain + 1.0 / cipher));
        let both: Vec<_> = both.filter(|_| kind.moves_bytes()).collect();
        Some(Self {
            bench: kind.name(),
            rounds: ROUNDS,
            proofs: proofs.map(report),
            proofs_ratio: proofs.and_then(|proofs| ratio(proofs.rates(), plain.rates())),
            tls_ratio: ratio(tls.rates(), plain.rates())?,
            tls_p50_ratio: ratio(tls.medians(), plain.medians())?,
            cipher_mib_s: round(median(ciphers.to_vec())),
            both_mib_s: (!both.is_empty()).then(|| round(median(both.clone()))),
            of_both_ratio: ratio(mib_s(tls).into_iter(), both.into_iter()),
            plain: report(plain),
            tls: report(tls),
        })
    }

    fn table(&self) -> String {
        let mut text = format!("{}: {} rounds on each pool\n", self.bench, self.rounds);
        let mut line = |name: &str, report: &Report, ratio: Option<f64>| {
            let moved = report.mib_s.map_or_else(String::new, |mib_s| format!("  {mib_s:.0} MiB/s"));
            let ratio = ratio.map_or_else(String::new, |ratio| format!("  {ratio:.2} of plain"));
            // Writing to a string can't fail.
            let _ = writeln!(
                text,
                "  {name:<8}{:.0} ops/s{moved}  p50 {:.0} us  p99 {:.0} us{ratio}",
                report.ops_s, report.p50_us, report.p99_us
            );
        };
        line("plain", &self.plain, None);
        if let Some(proofs) = &self.proofs {
            line("proofs", proofs, self.proofs_ratio);
        }
        line("tls", &self.tls, Some(self.tls_ratio));
        let mut judge = |what: &str, ratio: f64, goal: f64, is_met: bool| {
            let judged = if is_met { "met" } else { "missed" };
            let _ = writeln!(text, "  {what}: {ratio:.2}, goal {goal}: {judged}");
        };
        let is_small = self.plain.size_bytes <= SMALL;
        if is_small || self.both_mib_s.is_none() {
            judge("calls by TLS, of plain", self.tls_ratio, CALLS_GOAL, self.tls_ratio >= CALLS_GOAL);
        }
        if self.bench == Kind::Put.name() && self.plain.batch == 1 && is_small {
            judge("p50 by TLS, of plain", self.tls_p50_ratio, PUT_GOAL, self.tls_p50_ratio <= PUT_GOAL);
        }
        if let Some(proofs) = self.proofs_ratio.filter(|_| !is_small) {
            judge("proofs, of plain", proofs, PROOFS_GOAL, proofs >= PROOFS_GOAL);
        }
        if let (Some(both), Some(ratio), false) = (self.both_mib_s, self.of_both_ratio, is_small) {
            judge(
                "TLS, of plain bytes and the cipher one after the other",
                ratio,
                BYTES_GOAL,
                ratio >= BYTES_GOAL,
            );
            let cipher = self.cipher_mib_s;
            let _ = writeln!(
                text,
                "AES-128-GCM on one core {cipher:.0} MiB/s; plain bytes and then the cipher {both:.0} MiB/s"
            );
        }
        text + &self.plain.machine.line() + "\n"
    }
}

/// Returns the median ratio of the rounds; `None` if there is none.
fn ratio(of: impl Iterator<Item = f64>, to: impl Iterator<Item = f64>) -> Option<f64> {
    let ratios: Vec<_> = of.zip(to).map(|(of, to)| of / to).filter(|ratio| ratio.is_finite()).collect();
    (!ratios.is_empty()).then(|| median(ratios))
}

/// Returns the throughput of the cipher on one core.
fn cipher() -> Result<f64> {
    let key = UnboundKey::new(&AES_128_GCM, &[7; 16]).ok().context("no AES-128-GCM")?;
    let key = LessSafeKey::new(key);
    let mut record = vec![1_u8; RECORD];
    let (start, mut records) = (Instant::now(), 0_u64);
    while start.elapsed() < CIPHER_FOR {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&records.to_be_bytes());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), black_box(&mut record));
        let _tag = tag.ok().context("cannot encrypt")?;
        records += 1;
    }
    Ok(mib_s(records as usize * RECORD, start.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_rounds_counts_and_a_round_without_operations_does_not() {
        let of = [1.0, 8.0, 3.0, 0.0].into_iter();
        let to = [2.0, 2.0, 2.0, 0.0].into_iter();
        assert_eq!(ratio(of, to), Some(1.5));
        assert_eq!(ratio([].into_iter(), [].into_iter()), None);
    }

    #[test]
    fn the_cipher_encrypts() {
        assert!(cipher().unwrap() > 0.0);
    }
}
