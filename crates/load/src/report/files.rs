//! Files for other tools: CSV, HdrHistogram's percentile distribution and its interval log.

use std::io::{self, Write};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::figures::figures;
use crate::outcome::Outcome;

/// Writes a line per interval, with a head line.
///
/// # Errors
/// Those of `out`.
pub fn csv(outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "begins_s,lasts_s,intended_per_s,achieved_per_s,errors,missed,p50_us,p99_us,max_us,raw_p99_us"
    )?;
    for i in figures(outcome).intervals {
        writeln!(
            out,
            "{:.3},{:.3},{:.1},{:.1},{},{},{:.1},{:.1},{:.1},{:.1}",
            i.begins_s,
            i.lasts_s,
            i.intended_per_s,
            i.achieved_per_s,
            i.errors,
            i.missed,
            i.p50_us,
            i.p99_us,
            i.max_us,
            i.raw_p99_us
        )?;
    }
    Ok(())
}

// Steps per halving of the distance to 100 %: what HdrHistogram's own tools use.
const TICKS_PER_HALF: u32 = 5;

/// Writes the percentile distribution of the intended latency in ms, for HdrHistogram's plotter.
///
/// # Errors
/// Those of `out`.
pub fn hgrm(outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let histogram = outcome.total.response_ns();
    writeln!(
        out,
        "{:>12} {:>14} {:>10} {:>14}\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    )?;
    let mut total = 0;
    for step in histogram.iter_quantiles(TICKS_PER_HALF) {
        total += step.count_since_last_iteration();
        let value_ms = step.value_iterated_to() as f64 / 1e6;
        let quantile = step.quantile_iterated_to();
        if quantile < 1.0 {
            writeln!(
                out,
                "{value_ms:12.3} {quantile:2.12} {total:10} {:14.2}",
                1.0 / (1.0 - quantile)
            )?
        } else {
            writeln!(out, "{value_ms:12.3} {quantile:2.12} {total:10}")?
        }
    }
    let mean = histogram.mean() / 1e6;
    let deviation = histogram.stdev() / 1e6;
    writeln!(out, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]")?;
    let max = histogram.max() as f64 / 1e6;
    writeln!(out, "#[Max     = {max:12.3}, Total count    = {:12}]", histogram.len())?;
    let buckets = bucket_count(&histogram);
    let sub = 2048;
    writeln!(out, "#[Buckets = {buckets:12}, SubBuckets     = {sub:12}]")
}

/// HdrHistogram's own count of the halvings that its range needs at three digits.
fn bucket_count(histogram: &hdrhistogram::Histogram<u64>) -> u32 {
    let mut smallest_untrackable = 2048_u64 << histogram.low().max(1).ilog2();
    let mut buckets = 1;
    while smallest_untrackable <= histogram.high() {
        smallest_untrackable <<= 1;
        buckets += 1;
    }
    buckets
}

/// Writes HdrHistogram's interval log (version 1.3): per interval, a histogram of the intended
/// latency in nanoseconds of each class, tagged with its name, and one of the raw latency, tagged
/// `NAME.raw`. The maximum beside each is in milliseconds, as the format demands.
///
/// # Errors
/// Those of `out`.
pub fn interval_log(outcome: &Outcome, out: &mut impl Write) -> io::Result<()> {
    let broken = |error| io::Error::other(format!("cannot encode a histogram: {error:?}"));
    let mut encoder = V2DeflateSerializer::new();
    writeln!(out, "#[Histogram log format version 1.3]")?;
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("weft load: latency in nanoseconds")
        .with_start_time(outcome.began)
        .with_base_time(outcome.began)
        .with_max_value_divisor(1e6)
        .begin_log_with(out, &mut encoder)?;
    for interval in &outcome.intervals {
        for class in &interval.tally.classes {
            let raw = format!("{}.raw", class.name);
            for (name, histogram) in [(class.name, &class.response_ns), (&*raw, &class.service_ns)]
            {
                log.write_histogram(histogram, interval.begins, interval.lasts, Tag::new(name))
                    .map_err(broken)?;
            }
        }
    }
    Ok(())
}
