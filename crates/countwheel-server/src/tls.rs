//! TLS on the listening side: the certificate that callers are shown, while its files change, and the certificates of
//! callers.

use std::cmp::Reverse;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use countwheel_durable::{Trouble, TroubleReason};
use countwheel_peers::FileStamp;
use countwheel_time::Timestamp;
use parking_lot::{Mutex, RwLock};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_cert::Certificate;
use x509_cert::crl::CertificateList;
use x509_cert::der::asn1::{AnyRef, ObjectIdentifier, PrintableStringRef, Utf8StringRef};
use x509_cert::der::{Decode, Reader, Tag, TagNumber, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::time::Time;

use crate::callers::CertificateName;
use crate::roots;

/// How long a handshake may take.
pub(crate) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// How often the files are looked at.
pub(crate) const LOOKED_EVERY: Duration = Duration::from_secs(1);
/// How much of an answer may wait, encrypted, in front of its reader.
const SEND_BUFFER: usize = 16 << 10;
/// How long a response of OCSP may be: with the certificates it has to fit the 64 KiB of a message of a handshake.
const OCSP_MAX_BYTES: usize = 16 << 10;
/// What callers may choose by ALPN, the best first.
const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";
/// The common name, in the subject of a certificate (RFC 5280).
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// Why a certificate, its key, its response of OCSP, or the authorities or revocation lists of callers cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}: {problem}", file.display())]
pub struct BadTls {
    file: PathBuf,
    problem: String,
}

impl BadTls {
    fn new(file: &Path, problem: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            problem: problem.into(),
        }
    }
}

/// What is read.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    /// The certificate, and those between it and its authority.
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// What the authority says about the certificate by OCSP, which callers get with it.
    pub(crate) ocsp: Option<PathBuf>,
    /// What is asked of callers.
    pub(crate) callers: Option<CallersCa>,
}

/// Which certificates callers show.
#[derive(Clone, Debug)]
pub(crate) struct CallersCa {
    /// The authorities that they come from.
    pub(crate) file: PathBuf,
    /// The lists of those that are revoked. With them a certificate counts only if a list of its authority is there.
    pub(crate) revoked: Option<PathBuf>,
    /// Whether a caller without one is refused.
    pub(crate) is_required: bool,
}

/// What callers are shown. It is read again when its files change.
pub(crate) struct ServerTls {
    files: Files,
    /// What connections begin with.
    current: RwLock<Arc<Shown>>,
    seen: Mutex<Seen>,
    done: AtomicU64,
    failed: AtomicU64,
    late: AtomicU64,
}

/// The files as they were when they were read last, and what was wrong with them.
struct Seen {
    stamps: Vec<FileStamp>,
    problem: Option<BadTls>,
    /// The time of the wall clock at the last look.
    now: Timestamp,
}

struct Shown {
    config: Arc<ServerConfig>,
    not_after: Timestamp,
    /// When the first of the revocation lists in this file ends: from then on callers of its authority are refused.
    lists_end: Option<(PathBuf, Timestamp)>,
}

/// What the operator sees of it.
#[derive(Clone, Debug)]
pub(crate) struct TlsFigures {
    /// When the certificate that is shown ends, or one between it and its authority.
    pub(crate) not_after: Timestamp,
    /// When the first revocation list of callers ends.
    pub(crate) lists_end: Option<Timestamp>,
    /// The file that cannot be used as it is now.
    pub(crate) bad_file: Option<PathBuf>,
    /// Handshakes by how they ended.
    pub(crate) handshakes: [(&'static str, u64); 3],
}

/// How a handshake ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handshake {
    Done,
    Failed,
    Late,
}

/// What a handshake found out.
#[derive(Debug)]
pub(crate) struct Agreed {
    /// Whether the caller chose HTTP/2.
    pub(crate) is_http2: bool,
    /// The names of the certificate that the caller has shown, which was verified.
    pub(crate) names: Option<Arc<[CertificateName]>>,
}

impl ServerTls {
    /// Reads the files.
    pub(crate) fn read(files: Files, now: Timestamp) -> Result<Self, BadTls> {
        // Before they are read: a change meanwhile is seen the next time.
        let stamps = files.stamps();
        let shown = files.read(now)?;
        Ok(Self {
            files,
            current: RwLock::new(Arc::new(shown)),
            seen: Mutex::new(Seen {
                stamps,
                problem: None,
                now,
            }),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            late: AtomicU64::new(0),
        })
    }

    /// Reads the files again if one of them has changed. What is read is shown on connections that begin from then on;
    /// if it cannot be used, all stays as it was. Blocks.
    pub(crate) fn look(&self, now: Timestamp) {
        let stamps = self.files.stamps();
        {
            let mut seen = self.seen.lock();
            seen.now = now;
            // What is bad may become good without another change: a certificate begins.
            if seen.stamps == stamps && seen.problem.is_none() {
                return;
            }
            seen.stamps = stamps;
        }
        // No request waits for a disk that does not answer.
        let read = self.files.check().and_then(|()| self.files.read(now));
        let mut seen = self.seen.lock();
        match read {
            Ok(shown) => {
                let not_after = crate::time::format_time(shown.not_after);
                let file = self.files.certificate.display();
                tracing::info!(%file, not_after, "callers are shown this certificate from now on");
                seen.problem = None;
                *self.current.write() = Arc::new(shown);
            }
            Err(bad) => {
                if seen.problem.as_ref() != Some(&bad) {
                    let file = bad.file.display();
                    let problem = &bad.problem;
                    tracing::error!(%file, problem, "the certificate that callers are shown stays as it was");
                }
                seen.problem = Some(bad);
            }
        }
    }

    /// What is wrong with it, while everything goes on.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        let shown = Arc::clone(&self.current.read());
        let seen = self.seen.lock();
        let lists = shown.lists_end.as_ref().map(|(file, end)| (file, *end));
        let ends = [Some((&self.files.certificate, shown.not_after)), lists];
        let ended = ends.into_iter().flatten().find(|(_, end)| seen.now > *end);
        let ended = ended.map(|(file, end)| {
            let ended = crate::time::format_time(end);
            BadTls::new(file, format!("it ended at {ended}"))
        });
        let BadTls { file, problem } = seen.problem.clone().or(ended)?;
        Some(Trouble::new(
            TroubleReason::TlsCertificate,
            Some(file),
            problem,
        ))
    }

    pub(crate) fn figures(&self) -> TlsFigures {
        let problem = self.seen.lock().problem.clone();
        let shown = Arc::clone(&self.current.read());
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        TlsFigures {
            not_after: shown.not_after,
            lists_end: shown.lists_end.as_ref().map(|(_, end)| *end),
            bad_file: problem.map(|bad| bad.file),
            handshakes: [
                ("done", count(&self.done)),
                ("failed", count(&self.failed)),
                ("late", count(&self.late)),
            ],
        }
    }

    pub(crate) fn count(&self, ended: Handshake) {
        let of = match ended {
            Handshake::Done => &self.done,
            Handshake::Failed => &self.failed,
            Handshake::Late => &self.late,
        };
        of.fetch_add(1, Ordering::Relaxed);
    }

    /// The handshake on a connection that has come.
    pub(crate) async fn accept<S>(&self, stream: S) -> std::io::Result<(TlsStream<S>, Agreed)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&self.current.read().config);
        let bounded = |session: &mut rustls::ServerConnection| {
            session.set_buffer_limit(Some(SEND_BUFFER));
        };
        let stream = TlsAcceptor::from(config)
            .accept_with(stream, bounded)
            .await?;
        let (_, session) = stream.get_ref();
        let shown = session.peer_certificates().and_then(<[_]>::first);
        let agreed = Agreed {
            is_http2: session.alpn_protocol() == Some(HTTP_2),
            names: shown.map(|shown| names_of(shown).into()),
        };
        Ok((stream, agreed))
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl Files {
    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        let callers = self.callers.iter();
        let callers =
            callers.flat_map(|callers| std::iter::once(&callers.file).chain(&callers.revoked));
        let own = [&self.certificate, &self.key].into_iter();
        own.chain(&self.ocsp).chain(callers)
    }

    fn stamps(&self) -> Vec<FileStamp> {
        self.all().map(|file| FileStamp::of(file)).collect()
    }

    fn check(&self) -> Result<(), BadTls> {
        match self.all().find(|file| FileStamp::is_irregular(file)) {
            None => Ok(()),
            Some(file) => Err(BadTls::new(file, "it is no regular file")),
        }
    }

    fn read(&self, now: Timestamp) -> Result<Shown, BadTls> {
        let bad = |problem: String| BadTls::new(&self.certificate, problem);
        let chain = roots::certificates(&self.certificate).map_err(bad)?;
        let mut not_after = Timestamp::from_micros(u64::MAX);
        for certificate in &chain {
            let (begins, ends) = validity(certificate).map_err(bad)?;
            let shown = crate::time::format_time;
            if now < begins {
                return Err(bad(format!("the certificate begins at {}", shown(begins))));
            }
            if now > ends {
                return Err(bad(format!("the certificate ended at {}", shown(ends))));
            }
            not_after = not_after.min(ends);
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| match error {
            rustls::pki_types::pem::Error::NoItemsFound => {
                BadTls::new(&self.key, "it has no private key in PEM")
            }
            error => BadTls::new(&self.key, error.to_string()),
        })?;
        // The provider is named: another one in the process changes nothing here.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| bad(error.to_string()))?;
        let mut lists_end = None;
        let config = match &self.callers {
            None => config.with_no_client_auth(),
            Some(callers) => {
                let bad = |problem: String| BadTls::new(&callers.file, problem);
                let mut roots = RootCertStore::empty();
                roots::add(&mut roots, &callers.file).map_err(bad)?;
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let mut verifier = match callers.is_required {
                    true => verifier,
                    false => verifier.allow_unauthenticated(),
                };
                if let Some(file) = &callers.revoked {
                    let (lists, end) = revocation_lists(file, now)?;
                    verifier = verifier.with_crls(lists).enforce_revocation_expiration();
                    lists_end = Some((file.clone(), end));
                }
                let verifier = verifier.build().map_err(|error| match error {
                    VerifierBuilderError::InvalidCrl(error) => {
                        let file = callers.revoked.as_ref().unwrap_or(&callers.file);
                        BadTls::new(file, rustls::Error::from(error).to_string())
                    }
                    error => bad(error.to_string()),
                })?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let ocsp = self.ocsp.as_deref().map(ocsp_response).transpose()?;
        let config = config.with_single_cert_with_ocsp(chain, key, ocsp.unwrap_or_default());
        let mut config = config.map_err(|error| match error {
            rustls::Error::InvalidCertificate(_) => bad(error.to_string()),
            rustls::Error::InconsistentKeys(_) => {
                let certificate = self.certificate.display();
                let problem = format!("it is not the key of the certificate in {certificate}");
                BadTls::new(&self.key, problem)
            }
            error => BadTls::new(&self.key, error.to_string()),
        })?;
        config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1.to_vec()];
        if self.callers.is_some() {
            // A session that is resumed is not verified again: its certificate may have ended.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Shown {
            config: Arc::new(config),
            not_after,
            lists_end,
        })
    }
}

fn parsed(certificate: &CertificateDer<'_>) -> Result<Certificate, String> {
    Certificate::from_der(certificate).map_err(|error| format!("the certificate: {error}"))
}

/// From when to when a certificate is good.
fn validity(certificate: &CertificateDer<'_>) -> Result<(Timestamp, Timestamp), String> {
    let validity = parsed(certificate)?.tbs_certificate.validity;
    Ok((
        timestamp(validity.not_before),
        timestamp(validity.not_after),
    ))
}

fn timestamp(time: Time) -> Timestamp {
    let micros = u64::try_from(time.to_unix_duration().as_micros()).unwrap_or(u64::MAX);
    Timestamp::from_micros(micros)
}

/// The revocation lists of a file in PEM, one at least, and when the first of them ends.
fn revocation_lists(
    file: &Path,
    now: Timestamp,
) -> Result<(Vec<CertificateRevocationListDer<'static>>, Timestamp), BadTls> {
    let bad = |problem: String| BadTls::new(file, problem);
    let read = std::fs::read(file).map_err(|error| bad(error.to_string()))?;
    let mut lists = Vec::new();
    for list in CertificateRevocationListDer::pem_slice_iter(&read) {
        let list = list.map_err(|error| bad(error.to_string()))?;
        let parsed = CertificateList::from_der(&list)
            .map_err(|error| bad(format!("the revocation list: {error}")))?;
        let parsed = parsed.tbs_cert_list;
        let end = parsed.next_update.map(timestamp);
        let end = end.ok_or_else(|| bad("the revocation list says no end".to_owned()))?;
        if now >= end {
            let ended = crate::time::format_time(end);
            return Err(bad(format!("the revocation list ended at {ended}")));
        }
        lists.push((timestamp(parsed.this_update), end, list));
    }
    // Of several lists of an authority the first one counts.
    lists.sort_by_key(|(begins, ..)| Reverse(*begins));
    let end = lists.iter().map(|(_, end, _)| *end).min();
    let end = end.ok_or_else(|| bad("it has no revocation list in PEM".to_owned()))?;
    Ok((lists.into_iter().map(|(.., list)| list).collect(), end))
}

/// A response of OCSP in DER, of which the outermost layer is looked into (RFC 6960): a sequence of the status, which is
/// 0, and of the answer. Who has signed it, of which certificate it speaks and until when, callers see.
fn ocsp_response(file: &Path) -> Result<Vec<u8>, BadTls> {
    /// `[0] EXPLICIT ResponseBytes`.
    const ANSWER: Tag = Tag::ContextSpecific {
        constructed: true,
        number: TagNumber::N0,
    };
    let bad = |problem: String| BadTls::new(file, problem);
    let none = || bad("it is no response of OCSP in DER".to_owned());
    let mut read = Vec::new();
    // One byte more tells that it is too long.
    let most = OCSP_MAX_BYTES as u64 + 1;
    let opened = File::open(file).and_then(|opened| opened.take(most).read_to_end(&mut read));
    opened.map_err(|error| bad(error.to_string()))?;
    if read.is_empty() {
        return Err(bad("it is empty".to_owned()));
    }
    if read.len() > OCSP_MAX_BYTES {
        return Err(bad(format!("it has more than {OCSP_MAX_BYTES} bytes")));
    }
    let parts = AnyRef::from_der(&read).and_then(|all| {
        all.sequence(|parts| {
            let status = AnyRef::decode(parts)?;
            let has_more = !parts.is_finished();
            let answer = has_more.then(|| AnyRef::decode(parts)).transpose()?;
            Ok((status, answer))
        })
    });
    let (status, answer) = parts.map_err(|_| none())?;
    let answer = answer.map(|answer| answer.tag());
    match (status.tag(), status.value(), answer) {
        (Tag::Enumerated, [0], Some(ANSWER)) => Ok(read),
        (Tag::Enumerated, &[status], _) if status != 0 => {
            let problem = format!("the response of OCSP has the status {status}, and no answer");
            Err(bad(problem))
        }
        _ => Err(none()),
    }
}

/// The names of a certificate: those of hosts and the URIs among its alternative names, else the common name of its
/// subject. None if it has none of them, or cannot be read.
pub(crate) fn names_of(certificate: &CertificateDer<'_>) -> Vec<CertificateName> {
    let Ok(certificate) = parsed(certificate) else {
        return Vec::new();
    };
    let certificate = certificate.tbs_certificate;
    // One that says them twice, or in a way that nobody can read, has no other name instead.
    let Ok(alternative) = certificate.get::<SubjectAltName>() else {
        return Vec::new();
    };
    let alternative = alternative.map(|(_, SubjectAltName(names))| names);
    let named = alternative.into_iter().flatten();
    let named = named.filter_map(|name| match name {
        GeneralName::DnsName(name) => Some(CertificateName::Dns(name.as_str().to_owned())),
        GeneralName::UniformResourceIdentifier(uri) => {
            Some(CertificateName::Uri(uri.as_str().to_owned()))
        }
        _ => None,
    });
    let named: Vec<_> = named.collect();
    if !named.is_empty() {
        return named;
    }
    let parts = certificate.subject.0.iter().flat_map(|part| part.0.iter());
    let common = parts.filter(|part| part.oid == COMMON_NAME);
    let text = common.filter_map(|part| {
        let utf8 = part.value.decode_as::<Utf8StringRef<'_>>();
        let utf8 = utf8.map(|text| text.as_str().to_owned());
        let printable = || part.value.decode_as::<PrintableStringRef<'_>>();
        utf8.or_else(|_| printable().map(|text| text.as_str().to_owned()))
            .ok()
    });
    text.map(CertificateName::Common).collect()
}

/// Certificates to try things with.
#[cfg(test)]
pub(crate) mod testing {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use rustls::ClientConfig;

    use super::*;

    /// A certificate of its own making for `localhost`, good from 2020 to 2100, and its files.
    pub(crate) struct Made {
        pub(crate) directory: tempfile::TempDir,
    }

    impl Made {
        pub(crate) fn new() -> Self {
            let made = Self {
                directory: tempfile::tempdir().unwrap(),
            };
            made.write(2_020, 2_100);
            made
        }

        /// Puts another certificate there.
        pub(crate) fn write(&self, begins: i32, ends: i32) {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_before = date_time_ymd(begins, 1, 1);
            params.not_after = date_time_ymd(ends, 1, 1);
            let certificate = params.self_signed(&key).unwrap();
            let files = self.files();
            std::fs::write(files.certificate, certificate.pem()).unwrap();
            std::fs::write(files.key, key.serialize_pem()).unwrap();
        }

        pub(crate) fn files(&self) -> Files {
            let file = |name| self.directory.path().join(name);
            Files {
                certificate: file("certificate.pem"),
                key: file("key.pem"),
                ocsp: None,
                callers: None,
            }
        }

        /// In 2026.
        pub(crate) fn read_now(&self) -> Result<ServerTls, BadTls> {
            ServerTls::read(self.files(), at("2026-01-01T00:00:00Z"))
        }
    }

    pub(crate) fn at(text: &str) -> Timestamp {
        crate::time::parse_time(text).unwrap()
    }

    /// A caller that trusts what was made.
    pub(crate) fn trusting(made: &Made) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots::add(&mut roots, &made.files().certificate).unwrap();
        Arc::new(roots::trusting(roots))
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{
        CertificateParams, CertificateRevocationListParams, DnType, Issuer, KeyIdMethod, KeyPair,
        SanType, date_time_ymd,
    };

    use super::testing::{Made, at};
    use super::*;

    #[test]
    fn a_certificate_counts_by_the_time_that_it_is_told() {
        let made = Made::new();
        let end = at("2100-01-01T00:00:00Z");
        let read = |now| ServerTls::read(made.files(), at(now));
        for (now, why) in [
            ("2019-12-31T23:59:59Z", "begins at 2020-01-01"),
            ("2100-01-01T00:00:01Z", "ended at 2100-01-01"),
        ] {
            let bad = read(now).unwrap_err();
            assert_eq!(bad.file, made.files().certificate);
            assert!(bad.to_string().contains(why), "{bad}");
        }
        let tls = read("2020-01-01T00:00:00Z").unwrap();
        assert_eq!(tls.figures().not_after, end);
        tls.look(end);
        assert!(tls.trouble().is_none());
        // It goes on, since there is nothing better.
        tls.look(end + Duration::from_secs(1));
        let trouble = tls.trouble().unwrap().to_string();
        assert!(trouble.starts_with("tls_certificate: "), "{trouble}");
        assert!(trouble.contains("it ended at 2100-01-01"), "{trouble}");
    }

    #[test]
    fn a_revocation_list_counts_by_the_time_that_it_is_told() {
        let made = Made::new();
        let issuer = Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap());
        let list = |begins, ends| {
            let list = CertificateRevocationListParams {
                this_update: date_time_ymd(begins, 1, 1),
                next_update: date_time_ymd(ends, 1, 1),
                crl_number: 1.into(),
                issuing_distribution_point: None,
                revoked_certs: Vec::new(),
                key_identifier_method: KeyIdMethod::Sha256,
            };
            list.signed_by(&issuer).unwrap()
        };
        let file = made.directory.path().join("lists.pem");
        let (older, newer) = (list(2_020, 2_040), list(2_021, 2_030));
        let both = older.pem().unwrap() + &newer.pem().unwrap();
        std::fs::write(&file, both).unwrap();
        let (lists, end) = revocation_lists(&file, at("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(lists, [newer.der().clone(), older.der().clone()]);
        assert_eq!(end, at("2030-01-01T00:00:00Z"));
        let mut files = made.files();
        files.callers = Some(CallersCa {
            file: files.certificate.clone(),
            revoked: Some(file.clone()),
            is_required: true,
        });
        let bad = ServerTls::read(files.clone(), end).unwrap_err();
        assert_eq!(bad.file, file);
        assert!(bad.to_string().contains("ended at 2030-01-01"), "{bad}");
        let tls = ServerTls::read(files, at("2029-12-31T23:59:59Z")).unwrap();
        tls.look(end);
        assert!(tls.trouble().is_none());
        tls.look(end + Duration::from_secs(1));
        let trouble = tls.trouble().unwrap().to_string();
        assert!(trouble.contains("lists.pem"), "{trouble}");
        assert!(trouble.contains("it ended at 2030-01-01"), "{trouble}");
    }

    #[test]
    fn a_response_of_ocsp_is_one_that_has_an_answer() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ocsp.der");
        let read = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            ocsp_response(&file).map_err(|bad| bad.problem)
        };
        let good = [0x30, 7, 0x0a, 1, 0, 0xa0, 2, 0x30, 0];
        assert_eq!(read(&good).as_deref(), Ok(&good[..]));
        for (bytes, why) in [
            (&[][..], "it is empty"),
            (b"-----BEGIN", "no response of OCSP"),
            // A byte after it.
            (
                &[0x30, 7, 0x0a, 1, 0, 0xa0, 2, 0x30, 0, 0],
                "no response of OCSP",
            ),
            // A third part.
            (
                &[0x30, 9, 0x0a, 1, 0, 0xa0, 2, 0x30, 0, 5, 0],
                "no response of OCSP",
            ),
            // A whole number, and no code of a status.
            (&[0x30, 7, 2, 1, 0, 0xa0, 2, 0x30, 0], "no response of OCSP"),
            // A status without an answer, and one with something else.
            (&[0x30, 3, 0x0a, 1, 0], "no response of OCSP"),
            (
                &[0x30, 7, 0x0a, 1, 0, 0xa1, 2, 0x30, 0],
                "no response of OCSP",
            ),
            // To try later.
            (&[0x30, 3, 0x0a, 1, 3], "the status 3"),
        ] {
            let problem = read(bytes).unwrap_err();
            assert!(problem.contains(why), "{bytes:?}: {problem}");
        }
        for cut in 1..good.len() {
            assert!(read(&good[..cut]).is_err(), "{cut}");
        }
        // The longest one, and a byte more.
        let long = |length: usize| {
            let length = |less: usize| {
                let inner = u16::try_from(length - less).unwrap().to_be_bytes();
                [[0x82].as_slice(), &inner].concat()
            };
            let head = [0x30]
                .into_iter()
                .chain(length(4))
                .chain([0x0a, 1, 0, 0xa0]);
            head.chain(length(11)).collect::<Vec<u8>>()
        };
        for (length, is_taken) in [(OCSP_MAX_BYTES, true), (OCSP_MAX_BYTES + 1, false)] {
            let mut bytes = long(length);
            bytes.resize(length, 0);
            assert_eq!(read(&bytes).is_ok(), is_taken, "{length}");
        }
    }

    #[test]
    fn a_change_is_taken_once_it_is_good() {
        let made = Made::new();
        let tls = made.read_now().unwrap();
        let now = at("2026-01-01T00:00:00Z");
        let first = Arc::clone(&tls.current.read().config);
        let is_first = || Arc::ptr_eq(&first, &tls.current.read().config);
        tls.look(now);
        assert!(is_first());
        // One that begins later is taken then, without another change.
        made.write(2_030, 2_101);
        tls.look(now);
        assert!(is_first());
        let figures = tls.figures();
        assert_eq!(figures.bad_file, Some(made.files().certificate));
        assert!(tls.trouble().is_some());
        tls.look(at("2030-01-01T00:00:00Z"));
        assert!(!is_first() && tls.trouble().is_none());
        assert_eq!(tls.figures().not_after, at("2101-01-01T00:00:00Z"));
        assert_eq!(tls.figures().bad_file, None);
        // The key of another certificate, and one that is gone.
        let other = Made::new();
        std::fs::copy(other.files().key, made.files().key).unwrap();
        tls.look(at("2030-01-01T00:00:00Z"));
        assert_eq!(tls.figures().bad_file, Some(made.files().key));
        std::fs::remove_file(made.files().key).unwrap();
        tls.look(at("2030-01-01T00:00:00Z"));
        assert_eq!(tls.figures().bad_file, Some(made.files().key));
        assert_eq!(tls.figures().not_after, at("2101-01-01T00:00:00Z"));
        // A pipe that nobody writes to.
        let pipe = std::process::Command::new("mkfifo")
            .arg(made.files().key)
            .status();
        assert!(pipe.unwrap().success());
        tls.look(at("2030-01-01T00:00:00Z"));
        let trouble = tls.trouble().unwrap().to_string();
        assert!(trouble.contains("no regular file"), "{trouble}");
    }

    #[test]
    fn the_names_of_a_certificate_are_those_that_are_verified() {
        let names = |change: fn(&mut CertificateParams)| {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.distinguished_name = rcgen::DistinguishedName::new();
            change(&mut params);
            let certificate = params.self_signed(&key).unwrap();
            let names = names_of(certificate.der());
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(names(|_| {}).is_empty());
        let both = names(|params| {
            let name = &mut params.distinguished_name;
            name.push(DnType::CommonName, "not this");
            params.subject_alt_names = vec![
                SanType::DnsName("a.example".try_into().unwrap()),
                SanType::IpAddress([192, 0, 2, 1].into()),
                SanType::URI("spiffe://a/b".try_into().unwrap()),
            ];
        });
        assert_eq!(both, ["dns:a.example", "uri:spiffe://a/b"]);
        let common = names(|params| {
            let name = &mut params.distinguished_name;
            name.push(DnType::OrganizationName, "not this");
            name.push(DnType::CommonName, "uri:worker 7");
            params.subject_alt_names = vec![SanType::IpAddress([192, 0, 2, 1].into())];
        });
        assert_eq!(common, ["cn:uri:worker 7"]);
        assert!(names_of(&CertificateDer::from(b"none".as_slice())).is_empty());
    }
}
