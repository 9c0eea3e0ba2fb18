//! Validity periods of a certificate chain.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use httpdate::fmt_http_date;
use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// The validity of each certificate of a chain. RFC 5280 4.1.2.5
#[derive(Debug)]
pub(super) struct Validity {
    pub(super) file: PathBuf,
    /// Unix times in seconds, the server's own certificate first.
    periods: Vec<Period>,
}

#[derive(Debug)]
struct Period {
    not_before: i64,
    not_after: i64,
}

impl Validity {
    /// Reads the periods of `chain`; an unreadable certificate has none.
    pub(super) fn of(file: PathBuf, chain: &[CertificateDer<'_>]) -> Validity {
        let certificates = chain.iter().filter_map(|der| {
            let (_, certificate) = X509Certificate::from_der(der).ok()?;
            Some(certificate.tbs_certificate.validity)
        });
        let periods = certificates.map(|validity| Period {
            not_before: validity.not_before.timestamp(),
            not_after: validity.not_after.timestamp(),
        });
        Validity { file, periods: periods.collect() }
    }

    /// The end of the server's own certificate, in Unix seconds; 0 if it is unreadable.
    pub(super) fn not_after_unix_s(&self) -> i64 {
        self.periods.first().map_or(0, |period| period.not_after)
    }

    /// A sentence for each certificate that is not valid at `now`.
    pub(super) fn warnings(&self, now: SystemTime) -> impl Iterator<Item = String> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs() as i64);
        let file = self.file.display();
        self.periods.iter().enumerate().filter_map(move |(at, period)| {
            let which = if at == 0 {
                format!("the certificate {file}")
            } else {
                format!("certificate {} of {file}", at + 1)
            };
            if period.not_after < now {
                let end = date(period.not_after);
                Some(format!("{which} expired on {end}: clients refuse it"))
            } else if period.not_before > now {
                let start = date(period.not_before);
                Some(format!("{which} is not valid before {start}: clients refuse it"))
            } else {
                None
            }
        })
    }
}

/// A Unix time as an HTTP date, limited to the years 1970 to 9999.
fn date(unix_s: i64) -> String {
    const YEAR_9999_UNIX_S: i64 = 253_402_300_799;
    let since_epoch = Duration::from_secs(unix_s.clamp(0, YEAR_9999_UNIX_S) as u64);
    fmt_http_date(SystemTime::UNIX_EPOCH + since_epoch)
}
