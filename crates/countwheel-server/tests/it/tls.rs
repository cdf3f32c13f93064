//! TLS on the listening side: versions, ALPN, certificates that change, certificates of callers, and callers that mean
//! no good.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, RevokedCertParams, SanType, date_time_ymd,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, ProtocolVersion, RootCertStore,
    SignatureScheme, StreamOwned, SupportedProtocolVersion,
};
use serde_json::json;

use crate::support::{
    Answer, Client, Directory, PATIENCE, Server, output_of_refusal, pause, program, read_answer,
};

/// An authority, and a place for the files of what it signs.
pub(crate) struct Authority {
    directory: PathBuf,
    name: String,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

/// The files of a certificate.
#[derive(Clone)]
pub(crate) struct Signed {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap();
        fs::write(directory.join(format!("{name}-ca.pem")), certificate.pem()).unwrap();
        Self {
            directory: directory.to_owned(),
            name: name.to_owned(),
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    /// The file with the certificate of the authority.
    pub(crate) fn file(&self) -> PathBuf {
        self.directory.join(format!("{}-ca.pem", self.name))
    }

    /// A certificate for `localhost`.
    pub(crate) fn host(&self, name: &str) -> Signed {
        self.sign(name, |_| {})
    }

    /// A certificate for `localhost` with changes.
    fn sign(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |end: &str| self.directory.join(format!("{}-{name}.{end}", self.name));
        let signed = Signed {
            certificate: file("pem"),
            key: file("key"),
        };
        fs::write(&signed.certificate, certificate.pem()).unwrap();
        fs::write(&signed.key, key.serialize_pem()).unwrap();
        signed
    }

    /// A certificate with that serial number.
    fn numbered(&self, serial: u64) -> Signed {
        self.sign(&format!("caller-{serial}"), |params| {
            params.serial_number = Some(serial.into());
        })
    }

    /// A revocation list (PEM) of that year with these serial numbers, which ends with the year `ends`.
    fn list(&self, begins: i32, ends: i32, serials: &[u64]) -> String {
        let revoked = serials.iter().map(|&serial| RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: date_time_ymd(begins, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(begins, 1, 1),
            next_update: date_time_ymd(ends, 12, 31),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        roots
    }

    /// What a caller that trusts this authority begins with.
    fn caller(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        shows: Option<&Signed>,
    ) -> ClientConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(self.roots());
        match shows {
            None => config.with_no_client_auth(),
            Some(signed) => {
                let chain = CertificateDer::from_pem_file(&signed.certificate).unwrap();
                let key = PrivateKeyDer::from_pem_file(&signed.key).unwrap();
                config.with_client_auth_cert(vec![chain], key).unwrap()
            }
        }
    }
}

fn expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2_001, 1, 1);
    params.not_after = date_time_ymd(2_002, 1, 1);
}

impl Signed {
    /// Puts the files of another certificate in place of these.
    fn replace(&self, other: &Self) {
        fs::copy(&other.certificate, &self.certificate).unwrap();
        fs::copy(&other.key, &self.key).unwrap();
    }

    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(&self.certificate).unwrap()
    }

    /// The options by which it is shown on a port of its own.
    fn flags(&self) -> Vec<String> {
        let file = |path: &Path| path.to_str().unwrap().to_owned();
        vec![
            "--listen-tls=127.0.0.1:0".to_owned(),
            format!("--tls-cert={}", file(&self.certificate)),
            format!("--tls-key={}", file(&self.key)),
        ]
    }
}

fn start(directory: &Directory, flags: &[String]) -> Server {
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    Server::with(&directory.0.join("data"), &flags)
}

/// Where a service with one more place speaks TLS.
fn tls_address(server: &Server) -> String {
    let (_, others) = server.ready.split_once(" also=https://").unwrap();
    others.split([',', '\n']).next().unwrap().to_owned()
}

type Secured = BufReader<StreamOwned<ClientConnection, TcpStream>>;

fn connect(address: &str, config: ClientConfig) -> std::io::Result<Secured> {
    let host = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), host).map_err(std::io::Error::other)?;
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut stream = StreamOwned::new(session, stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(BufReader::new(stream))
}

fn ask(stream: &mut Secured, path: &str) -> Option<Answer> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.get_mut().write_all(request.as_bytes()).ok()?;
    let available = stream.fill_buf().ok()?;
    if available.is_empty() {
        return None;
    }
    read_answer(stream, false)
}

/// The status of an answer on a connection of its own; what went wrong, if there is none.
fn status(address: &str, config: ClientConfig) -> Result<u16, String> {
    let mut stream = connect(address, config).map_err(|error| error.to_string())?;
    let answer = ask(&mut stream, "/healthz");
    answer
        .map(|answer| answer.status)
        .ok_or_else(|| "closed".to_owned())
}

/// The alert with which a handshake is refused.
fn alert(address: &str, config: ClientConfig) -> String {
    match connect(address, config) {
        Err(error) => error.to_string(),
        // In TLS 1.3 a caller is done before its certificate is verified.
        Ok(mut stream) => stream.fill_buf().unwrap_err().to_string(),
    }
}

/// The samples of a metric, by the name with its labels.
fn sample(client: &mut Client, name: &str) -> Option<f64> {
    let text = String::from_utf8(client.get("/metrics").body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map(|value| value.trim().parse().unwrap())
}

#[track_caller]
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if is_so() {
            return;
        }
        pause();
    }
    panic!("never: {what}");
}

#[test]
fn both_versions_speak_what_alpn_chooses() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let server = start(&directory, &authority.host("a").flags());
    let address = tls_address(&server);
    for (version, expected) in [
        (&TLS12, ProtocolVersion::TLSv1_2),
        (&TLS13, ProtocolVersion::TLSv1_3),
    ] {
        for alpn in [&[][..], &[&b"http/1.1"[..]], &[b"unknown", b"http/1.1"]] {
            let mut config = authority.caller(&[version], None);
            config.alpn_protocols = alpn.iter().map(|&name| name.to_vec()).collect();
            let mut stream = connect(&address, config).unwrap();
            let chosen = stream.get_ref().conn.alpn_protocol().map(<[u8]>::to_vec);
            assert_eq!(chosen.as_deref(), alpn.last().copied());
            let spoken = stream.get_ref().conn.protocol_version();
            assert_eq!(spoken, Some(expected));
            for _ in 0..3 {
                assert_eq!(ask(&mut stream, "/v1/queues").unwrap().status, 200);
            }
        }
        let mut config = authority.caller(&[version], None);
        config.alpn_protocols = vec![b"h3".to_vec()];
        assert!(connect(&address, config).is_err());
        // Whoever chose HTTP/1.1 is not understood in HTTP/2.
        let mut config = authority.caller(&[version], None);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut stream = connect(&address, config).unwrap();
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        stream.get_mut().write_all(preface).unwrap();
        assert_eq!(read_answer(&mut stream, false).unwrap().status, 400);
    }
    // Whoever does not trust the authority hangs up.
    let others = Authority::new(&directory.0, "others");
    assert!(connect(&address, others.caller(&[&TLS13], None)).is_err());
}

#[tokio::test]
async fn http_2_is_chosen_by_alpn() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let server = start(&directory, &authority.host("a").flags());
    let address = tls_address(&server);
    for version in [&TLS12, &TLS13] {
        let mut config = authority.caller(&[version], None);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let host = ServerName::try_from("localhost").unwrap();
        let stream = connector.connect(host, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        let drives = tokio::spawn(connection);
        let answers = (0..20).map(|_| {
            let mut send = send.clone();
            async move {
                let uri = "https://localhost/v1/queues";
                let request = axum::http::Request::get(uri).body(()).unwrap();
                let (answer, _) = send.send_request(request, true).unwrap();
                answer.await.unwrap().status().as_u16()
            }
        });
        for answer in answers.collect::<Vec<_>>() {
            assert_eq!(answer.await, 200);
        }
        drop(send);
        drives.await.unwrap().unwrap();
    }
}

#[test]
fn no_connection_is_dropped_while_certificates_change() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let shown = authority.host("shown");
    let others = ["one", "two", "three"].map(|name| authority.host(name));
    let server = start(&directory, &shown.flags());
    let address = tls_address(&server);
    let caller = || authority.caller(&[&TLS12, &TLS13], None);
    let ends = AtomicBool::new(false);
    let answered: Vec<_> = (0..50).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for answered in &answered {
            let (address, ends, config) = (&address, &ends, caller());
            scope.spawn(move || {
                let mut stream = connect(address, config).unwrap();
                while !ends.load(Ordering::Relaxed) {
                    let answer = ask(&mut stream, "/v1/queues").expect("the connection goes on");
                    assert_eq!(answer.status, 200);
                    answered.fetch_add(1, Ordering::Relaxed);
                    pause();
                }
            });
        }
        let all = || -> Vec<u64> {
            let counts = answered.iter();
            counts.map(|it| it.load(Ordering::Relaxed)).collect()
        };
        wait_for("all have answers", || all().iter().all(|&count| count > 0));
        for other in &others {
            shown.replace(other);
            wait_for("the next certificate is shown", || {
                let stream = connect(&address, caller()).unwrap();
                let certificates = stream.get_ref().conn.peer_certificates();
                certificates.unwrap()[0] == other.der()
            });
            let before = all();
            wait_for("all go on", || {
                before
                    .iter()
                    .zip(all())
                    .all(|(before, now)| now > before + 2)
            });
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(server.stop().success());
}

#[test]
fn a_change_that_is_no_good_leaves_the_certificate_as_it_was() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let shown = authority.host("shown");
    let first = authority.host("first");
    let old = authority.sign("old", expired);
    let far = authority.sign("far", |params| {
        params.not_before = date_time_ymd(4_000, 1, 1);
    });
    shown.replace(&first);
    let server = start(&directory, &shown.flags());
    let address = tls_address(&server);
    let mut client = server.client();
    let mut unusable = |path: &Path| {
        let name = format!(
            "countwheel_tls_file_unusable{{file=\"{}\"}}",
            path.display()
        );
        let degraded = "countwheel_degraded{reason=\"tls_certificate\"}";
        (sample(&mut client, &name), sample(&mut client, degraded))
    };
    let is_shown = |signed: &Signed| {
        let caller = authority.caller(&[&TLS13], None);
        let stream = connect(&address, caller).unwrap();
        stream.get_ref().conn.peer_certificates().unwrap()[0] == signed.der()
    };
    assert_eq!(unusable(&shown.certificate), (None, Some(0.0)));
    let spoil = |file: &Path, bytes: &[u8]| fs::write(file, bytes).unwrap();
    let good = fs::read(&first.certificate).unwrap();
    let change: [(&str, &dyn Fn(), &Path); 7] = [
        ("ended", &|| shown.replace(&old), &shown.certificate),
        ("not begun", &|| shown.replace(&far), &shown.certificate),
        (
            "no PEM",
            &|| spoil(&shown.certificate, b"nothing"),
            &shown.certificate,
        ),
        (
            "cut off",
            &|| spoil(&shown.certificate, &good[..good.len() / 2]),
            &shown.certificate,
        ),
        (
            "gone",
            &|| fs::remove_file(&shown.certificate).unwrap(),
            &shown.certificate,
        ),
        ("no key", &|| spoil(&shown.key, b""), &shown.key),
        (
            "another key",
            &|| assert!(fs::copy(&old.key, &shown.key).unwrap() > 0),
            &shown.key,
        ),
    ];
    for (number, (what, change, file)) in change.into_iter().enumerate() {
        change();
        wait_for(what, || unusable(file) == (Some(1.0), Some(1.0)));
        assert!(is_shown(&first), "{what}");
        // Good again; a certificate that is another one each time.
        let next = authority.host(&format!("next-{number}"));
        shown.replace(&next);
        wait_for("it is good", || unusable(file) == (None, Some(0.0)));
        assert!(is_shown(&next), "{what}");
        shown.replace(&first);
        wait_for("the first is back", || is_shown(&first));
    }
}

#[test]
fn a_start_with_a_certificate_that_is_no_good_is_refused() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let good = authority.host("good");
    let old = authority.sign("old", expired);
    let text = directory.0.join("text");
    fs::write(&text, "text").unwrap();
    let refused = |certificate: &Path, key: &Path, more: &[String]| {
        let signed = Signed {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        };
        let mut command = program();
        let data = directory.0.join("data");
        command.arg("serve").arg("--data").arg(&data);
        command.args(signed.flags()).args(more);
        let output = output_of_refusal(command).expect("it is refused");
        assert!(!data.exists(), "nothing was made");
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let name = |path: &Path| path.display().to_string();
    for (certificate, key, named, word) in [
        (
            &old.certificate,
            &old.key,
            &old.certificate,
            "ended at 2002",
        ),
        (&text, &good.key, &text, "no certificate"),
        (&good.key, &good.key, &good.key, "no certificate"),
        (&good.certificate, &text, &text, "no private key"),
        (
            &good.certificate,
            &old.key,
            &old.key,
            "not the key of the certificate",
        ),
    ] {
        let (code, said) = refused(certificate, key, &[]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&name(named)) && said.contains(word), "{said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
    let ca = format!("--tls-client-ca={}", name(&text));
    let (code, said) = refused(&good.certificate, &good.key, &[ca]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&name(&text)), "{said}");
    let ca = format!("--tls-client-ca={}", name(&authority.file()));
    let list = authority.list(2_020, 4_000, &[7]);
    for (bytes, word) in [
        ("", "no revocation list in PEM"),
        (
            &*fs::read_to_string(authority.file()).unwrap(),
            "no revocation list in PEM",
        ),
        (&list[..list.len() / 2], "section end"),
        (
            "-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n",
            "the revocation list: ",
        ),
        (
            &*(list.clone() + &authority.list(2_001, 2_002, &[])),
            "ended at 2002-12-31",
        ),
    ] {
        fs::write(&text, bytes).unwrap();
        let lists = format!("--tls-client-crl={}", name(&text));
        let (code, said) = refused(&good.certificate, &good.key, &[ca.clone(), lists]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&name(&text)) && said.contains(word), "{said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
    for (bytes, word) in [
        (&b""[..], "it is empty"),
        (b"text", "no response of OCSP"),
        (&[0x30, 3, 0x0a, 1, 6], "the status 6"),
        (&[0x30; 16_385], "more than 16384 bytes"),
    ] {
        fs::write(&text, bytes).unwrap();
        let response = format!("--tls-ocsp={}", name(&text));
        let (code, said) = refused(&good.certificate, &good.key, &[response]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&name(&text)) && said.contains(word), "{said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
    for (usage, word) in [
        (&["--listen-tls=127.0.0.1:0"][..], "--tls-cert"),
        (&["--tls-cert=a", "--tls-key=b"], "--listen-tls"),
        (&["--tls-client-ca=a"], "--listen-tls"),
        (&["--tls-client-auth=optional"], "--tls-client-ca"),
        (&["--tls-client-crl=a"], "--tls-client-ca"),
        (&["--tls-ocsp=a"], "--tls-cert"),
        (&["--listen=unix:relative"], "unix:/"),
        (&["--socket-mode=999"], "0600"),
    ] {
        let mut command = program();
        command.args(["serve", "--data", "never"]).args(usage);
        let output = output_of_refusal(command).expect("it is refused");
        assert_eq!(output.status.code(), Some(2), "{usage:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(word), "{usage:?}: {said}");
    }
    // Other machines need a token by TLS as well.
    let mut command = program();
    command.args(["serve", "--data", "never"]);
    command
        .args(&good.flags()[1..])
        .arg("--listen-tls=0.0.0.0:0");
    let output = output_of_refusal(command).expect("it is refused");
    assert_eq!(output.status.code(), Some(2));
}

/// A service whose log is read.
struct Logging {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Logging {
    fn start(directory: &Directory, flags: &[String]) -> Self {
        let log = directory.0.join("log");
        let mut command = program();
        command
            .args([
                "serve",
                "--log-segment-mib=1",
                "--log-level=debug",
                "--data",
            ])
            .arg(directory.0.join("data"))
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        let mut ready = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut ready).unwrap();
        let (_, address) = ready.split_once("ready https://").unwrap();
        let address = address.split(' ').next().unwrap().to_owned();
        Self {
            child,
            address,
            log,
        }
    }

    fn has_logged(&self, words: &str) -> bool {
        fs::read_to_string(&self.log).unwrap().contains(words)
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

#[test]
fn callers_show_a_certificate_of_the_authority_that_is_named() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let others = Authority::new(&directory.0, "others");
    let shown = authority.host("shown");
    let named = authority.sign("named", |params| {
        let uri = "spiffe://example.org/worker".try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
    });
    let common = authority.sign("worker 7", |params| params.subject_alt_names.clear());
    let old = authority.sign("old", expired);
    let stranger = others.host("stranger");
    for required in [true, false] {
        let mut flags = shown.flags();
        flags.push(format!("--tls-client-ca={}", authority.file().display()));
        if !required {
            flags.push("--tls-client-auth=optional".to_owned());
        }
        let server = Logging::start(&directory, &flags);
        for version in [&TLS12, &TLS13] {
            let status = |shows| status(&server.address, authority.caller(&[version], shows));
            assert_eq!(status(Some(&named)), Ok(200));
            assert_eq!(status(Some(&common)), Ok(200));
            assert!(status(Some(&old)).is_err());
            assert!(status(Some(&stranger)).is_err());
            assert_eq!(status(None).is_err(), required);
        }
        for peer in [
            "peer=127.0.0.1 dns:localhost uri:spiffe://example.org/worker",
            "peer=127.0.0.1 cn:worker 7",
        ] {
            wait_for(peer, || server.has_logged(peer));
        }
        assert!(!server.has_logged("stranger") && !server.has_logged("cn:old"));
    }
}

#[test]
fn a_revoked_certificate_is_refused_in_the_handshake() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let others = Authority::new(&directory.0, "others");
    let (lost, kept) = (authority.numbered(7), authority.numbered(8));
    let unlisted = others.numbered(8);
    let file = |name: &str, text: String| {
        let file = directory.0.join(name);
        fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let both = [&authority, &others].map(|ca| fs::read_to_string(ca.file()).unwrap());
    let both = file("both.pem", both.concat());
    let lists = file("lists.pem", authority.list(2_020, 4_000, &[6, 7]));
    for required in [true, false] {
        let mut flags = authority.host("shown").flags();
        flags.push(format!("--tls-client-ca={both}"));
        flags.push(format!("--tls-client-crl={lists}"));
        if !required {
            flags.push("--tls-client-auth=optional".to_owned());
        }
        let server = start(&directory, &flags);
        let address = tls_address(&server);
        for version in [&TLS12, &TLS13] {
            let caller = |shows| authority.caller(&[version], shows);
            assert_eq!(status(&address, caller(Some(&kept))), Ok(200));
            assert_eq!(status(&address, caller(None)).is_err(), required);
            let said = alert(&address, caller(Some(&lost)));
            assert!(said.contains("CertificateRevoked"), "{said}");
            // Nobody says whether it is revoked.
            let said = alert(&address, caller(Some(&unlisted)));
            assert!(said.contains("UnknownCA"), "{said}");
        }
        assert!(server.stop().success());
    }
}

#[test]
fn a_revocation_list_that_changes_counts_from_then_on() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let (lost, kept) = (authority.numbered(7), authority.numbered(8));
    let lists = directory.0.join("lists.pem");
    let put = |text: &str| fs::write(&lists, text).unwrap();
    put(&authority.list(2_020, 4_000, &[]));
    let mut flags = authority.host("shown").flags();
    flags.push(format!("--tls-client-ca={}", authority.file().display()));
    flags.push(format!("--tls-client-crl={}", lists.display()));
    let server = start(&directory, &flags);
    let address = tls_address(&server);
    let caller = |shows| authority.caller(&[&TLS13], Some(shows));
    let is_served = |shows| status(&address, caller(shows)) == Ok(200);
    let mut open = connect(&address, caller(&lost)).unwrap();
    assert_eq!(ask(&mut open, "/v1/queues").unwrap().status, 200);
    // The newer list counts, wherever it stands in the file.
    let list = authority.list(2_021, 4_000, &[7]);
    put(&(authority.list(2_020, 4_000, &[]) + &list));
    wait_for("the lost one is refused", || !is_served(&lost));
    assert!(is_served(&kept));
    assert_eq!(ask(&mut open, "/v1/queues").unwrap().status, 200);
    let mut client = server.client();
    let name = format!(
        "countwheel_tls_file_unusable{{file=\"{}\"}}",
        lists.display()
    );
    let mut unusable = || {
        let degraded = "countwheel_degraded{reason=\"tls_certificate\"}";
        (sample(&mut client, &name), sample(&mut client, degraded))
    };
    assert_eq!(unusable(), (None, Some(0.0)));
    let ends = sample(
        &mut server.client(),
        "countwheel_tls_client_crl_next_update_seconds ",
    );
    // The last day of the year 4000.
    assert_eq!(ends, Some(64_092_124_800.0));
    for (what, text) in [
        ("no PEM", "nothing"),
        ("cut off", &list[..list.len() / 2]),
        ("ended", &*authority.list(2_001, 2_002, &[])),
    ] {
        put(text);
        wait_for(what, || unusable() == (Some(1.0), Some(1.0)));
        assert!(!is_served(&lost) && is_served(&kept), "{what}");
        put(&list);
        wait_for("it is good", || unusable() == (None, Some(0.0)));
    }
    // A list that somebody else has signed in the name of the authority says nothing of its certificates.
    let elsewhere = Directory::new();
    put(&Authority::new(&elsewhere.0, "ours").list(2_022, 4_000, &[]));
    wait_for("nobody is served", || !is_served(&kept));
    assert!(!is_served(&lost));
    put(&authority.list(2_023, 4_000, &[]));
    wait_for("it is revoked no more", || is_served(&lost));
}

/// Keeps the response of OCSP that came with a certificate, and verifies the certificate as a caller does.
#[derive(Debug)]
struct Stapled {
    verifier: Arc<WebPkiServerVerifier>,
    response: Mutex<Option<Vec<u8>>>,
}

impl ServerCertVerifier for Stapled {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.response.lock().unwrap() = Some(response.to_vec());
        let verifier = &self.verifier;
        verifier.verify_server_cert(certificate, between, host, response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let verifier = &self.verifier;
        verifier.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let verifier = &self.verifier;
        verifier.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// A response of OCSP with an answer of those bytes.
fn ocsp_response(answer: &[u8]) -> Vec<u8> {
    let length = |inner: usize| u8::try_from(inner).unwrap();
    let head = [0x30, length(answer.len() + 5), 0x0a, 1, 0, 0xa0];
    [&head[..], &[length(answer.len())], answer].concat()
}

#[test]
fn callers_get_the_response_of_ocsp_with_the_certificate() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let response = directory.0.join("ocsp.der");
    let (first, second) = (ocsp_response(b"first"), ocsp_response(&[7; 100]));
    fs::write(&response, &first).unwrap();
    let mut flags = authority.host("shown").flags();
    flags.push(format!("--tls-ocsp={}", response.display()));
    let server = start(&directory, &flags);
    let address = tls_address(&server);
    let stapled = |version| {
        let roots = Arc::new(authority.roots());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider);
        let stapled = Arc::new(Stapled {
            verifier: verifier.build().unwrap(),
            response: Mutex::default(),
        });
        let mut config = authority.caller(&[version], None);
        let verifier = Arc::clone(&stapled);
        config.dangerous().set_certificate_verifier(verifier);
        assert_eq!(status(&address, config), Ok(200));
        stapled.response.lock().unwrap().take().unwrap()
    };
    for version in [&TLS12, &TLS13] {
        assert_eq!(stapled(version), first);
    }
    let mut client = server.client();
    let name = format!(
        "countwheel_tls_file_unusable{{file=\"{}\"}}",
        response.display()
    );
    let mut unusable = || sample(&mut client, &name);
    fs::write(&response, "").unwrap();
    wait_for("it is refused", || unusable() == Some(1.0));
    assert_eq!(stapled(&TLS13), first);
    fs::write(&response, &second).unwrap();
    wait_for("the second is there", || stapled(&TLS13) == second);
    assert_eq!(stapled(&TLS12), second);
    assert_eq!(unusable(), None);
}

#[test]
fn a_certificate_stands_for_the_token_that_names_it() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let named = authority.sign("named", |params| {
        let uri = "spiffe://example.org/worker".try_into().unwrap();
        params.subject_alt_names.push(SanType::URI(uri));
    });
    let common = authority.sign("worker 7", |params| params.subject_alt_names.clear());
    let mut flags = authority.host("shown").flags();
    flags.push(format!("--tls-client-ca={}", authority.file().display()));
    flags.push("--tls-client-auth=optional".to_owned());
    let server = start(&directory, &flags);
    let mut admin = server.client();
    let mut token = |body: &str| admin.json("POST", "/v1/tokens", body).expect(201);
    let first = token(r#"{"name":"first","scopes":["admin"]}"#);
    let shown = format!("Bearer {}", first["token"].as_str().unwrap());
    let mut admin = server.client();
    admin.headers.push(("authorization".to_owned(), shown));
    let mut token = |body: &str| admin.json("POST", "/v1/tokens", body).expect(201);
    let worker =
        r#"{"name":"w","scopes":["read","write"],"certificate":"uri:spiffe://example.org/worker"}"#;
    let made = token(worker);
    assert!(made.get("token").is_none());
    let address = tls_address(&server);
    let status = |shows, path| {
        let mut stream = connect(&address, authority.caller(&[&TLS13], shows)).unwrap();
        ask(&mut stream, path).unwrap().status
    };
    assert_eq!(status(Some(&named), "/v1/queues"), 200);
    assert_eq!(status(Some(&named), "/v1/tokens"), 403);
    assert_eq!(status(Some(&common), "/v1/queues"), 401);
    assert_eq!(status(None, "/v1/queues"), 401);
    let again = admin.json("POST", "/v1/tokens", worker);
    assert_eq!(again.problem(), (409, "conflict".into()));
    // A browser shows a certificate by itself, whichever page has it ask.
    let fire = |more: &str| {
        let mut stream = connect(&address, authority.caller(&[&TLS13], Some(&named))).unwrap();
        let request = format!(
            "POST /v1/queues/q/timers/k:fire HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n{more}\r\n"
        );
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        read_answer(&mut stream, false).unwrap().status
    };
    assert_eq!(fire(""), 404);
    assert_eq!(
        fire("origin: https://localhost\r\nsec-fetch-site: same-origin\r\n"),
        404
    );
    assert_eq!(fire("origin: https://evil.example\r\n"), 403);
    // A cookie that is no session makes no session of a certificate.
    admin
        .json(
            "PUT",
            "/v1/queues/q/timers/k",
            r#"{"in":"9d","target":{"url":"http://x.invalid/"}}"#,
        )
        .expect(201);
    let stale = "cookie: countwheel_session=-.9.0.0\r\n";
    assert_eq!(fire(stale), 202);
    let log = admin.get("/v1/audit?limit=1").expect(200);
    let entry = &log["items"][0];
    assert_eq!(entry["operation"], "fireTimer");
    assert_eq!(
        entry["certificate"],
        "dns:localhost uri:spiffe://example.org/worker"
    );
    assert_eq!(
        entry["who"],
        json!({"kind": "token", "id": made["id"], "name": "w"})
    );
    assert_eq!(entry["from"], "127.0.0.1");
    let mut stream = connect(&address, authority.caller(&[&TLS13], Some(&named))).unwrap();
    let request = format!(
        "POST /timer/revive?queue=q&key=k HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n{stale}\r\n"
    );
    stream.get_mut().write_all(request.as_bytes()).unwrap();
    // The timer is not dead: the form was let in.
    assert_eq!(read_answer(&mut stream, false).unwrap().status, 409);
    assert_eq!(fire("sec-fetch-site: cross-site\r\n"), 403);
    // What is shown as a token counts alone, right or wrong.
    let mut stream = connect(&address, authority.caller(&[&TLS13], Some(&named))).unwrap();
    let request = "GET /v1/queues HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer x\r\n\r\n";
    stream.get_mut().write_all(request.as_bytes()).unwrap();
    assert_eq!(read_answer(&mut stream, false).unwrap().status, 401);
    let path = format!("/v1/tokens/{}", made["id"].as_str().unwrap());
    admin.send("DELETE", &path, &[], b"").expect(200);
    assert_eq!(status(Some(&named), "/v1/queues"), 401);
}

#[test]
fn the_commands_trust_a_file_and_show_a_certificate() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let caller = authority.host("caller");
    let mut flags = authority.host("shown").flags();
    flags.push(format!("--tls-client-ca={}", authority.file().display()));
    let server = start(&directory, &flags);
    let port = tls_address(&server).rsplit_once(':').unwrap().1.to_owned();
    let url = format!("--server=https://localhost:{port}");
    let ask = |more: &[&Path]| {
        let flags = ["--server-ca", "--client-cert", "--client-key"];
        let mut command = program();
        command.args(["queues", "--json", &url]);
        for (flag, file) in flags.iter().zip(more) {
            command.arg(flag).arg(file);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    let ca = authority.file();
    let all = [&*ca, &caller.certificate, &caller.key];
    assert_eq!(ask(&all), (Some(0), String::new()));
    let (code, said) = ask(&[]);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("UnknownIssuer"), "{said}");
    // Without a certificate the service closes the connection.
    assert_eq!(ask(&all[..1]).0, Some(3));
    let (code, said) = ask(&[&caller.key]);
    assert_eq!(code, Some(2), "{said}");
    let named = caller.key.to_str().unwrap();
    assert!(
        said.contains(named) && said.contains("no certificate"),
        "{said}"
    );
}

#[test]
fn garbage_in_place_of_a_handshake_is_closed_and_counted() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let server = start(&directory, &authority.host("a").flags());
    let address = tls_address(&server);
    // A warning (user_canceled) in plain text, as a record.
    let alerts = [0x15, 3, 3, 0, 2, 1, 90].repeat(1_000);
    // A hello that says to be longer than any handshake may be.
    let long = [0x16, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff];
    let plain: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let garbage = [plain, preface, &[0; 4_096], &[0xff; 65_536], &alerts, &long];
    for bytes in garbage {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may be closed before all is sent.
        stream.write_all(bytes).unwrap_or_default();
        let mut answer = Vec::new();
        match stream.read_to_end(&mut answer) {
            // An alert at the most.
            Ok(_) => assert!(answer.is_empty() || answer[0] == 0x15, "{answer:?}"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
    let mut client = server.client();
    let failed = "countwheel_tls_handshakes_total{ended=\"failed\"}";
    let expected = garbage.len() as f64;
    wait_for("all have failed", || {
        sample(&mut client, failed) == Some(expected)
    });
    let caller = authority.caller(&[&TLS12, &TLS13], None);
    assert_eq!(status(&address, caller), Ok(200));
}

#[test]
fn handshakes_take_places_and_make_room() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let mut flags = authority.host("a").flags();
    flags.push("--connections-per-address=8".to_owned());
    let server = start(&directory, &flags);
    let address = tls_address(&server);
    // Each begins a handshake, and goes no further.
    let half = [0x16, 3, 1, 1, 0];
    let held: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(&half).unwrap();
            stream
        })
        .collect();
    let caller = authority.caller(&[&TLS12, &TLS13], None);
    assert_eq!(status(&address, caller), Ok(200));
    // Those at an address without TLS count as well.
    let mut client = server.client();
    let open = sample(&mut client, "countwheel_connections ").unwrap();
    assert!(open <= 9.0, "{open}");
    let told = sample(&mut client, "countwheel_connections_closed_for_room_total ");
    assert!(told.unwrap() >= 32.0, "{told:?}");
    drop(held);
}

/// Over TLS the cookie of a session had the name that a page without TLS, or of another host of the domain, can give one too.
#[test]
fn a_session_over_tls_is_in_a_cookie_that_only_its_host_gives() {
    let directory = Directory::new();
    let authority = Authority::new(&directory.0, "ours");
    let server = start(&directory, &authority.host("shown").flags());
    let made = r#"{"name":"first","scopes":["admin"]}"#;
    let made = server.client().json("POST", "/v1/tokens", made).expect(201);
    let form = format!("token={}&to=/", made["token"].as_str().unwrap());
    let length = form.len();
    let address = tls_address(&server);
    let say = |request: &str| {
        let mut stream = connect(&address, authority.caller(&[&TLS13], None)).unwrap();
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        read_answer(&mut stream, false).unwrap()
    };
    let login = |more: &str| {
        format!(
            "POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-www-form-urlencoded\r\n\
             content-length: {length}\r\n{more}\r\n{form}"
        )
    };
    let begun = say(&login(""));
    assert_eq!(begun.status, 303, "{begun:?}");
    let set = begun.header("set-cookie").unwrap();
    let (cookie, attributes) = set.split_once(';').unwrap();
    let session = cookie.strip_prefix("__Host-countwheel_session=").unwrap();
    assert!(
        attributes.contains("Secure") && attributes.contains("Path=/;"),
        "{set}"
    );
    assert!(!attributes.contains("Domain"), "{set}");
    let page = |cookie: &str| {
        let head = "GET /dead HTTP/1.1\r\nhost: localhost\r\naccept: text/html";
        say(&format!("{head}\r\ncookie: {cookie}\r\n\r\n"))
    };
    assert_eq!(page(cookie).status, 200);
    // Somebody without TLS gives a browser a session of his own choice, in front of the one of the host or alone.
    let plain = format!("countwheel_session={session}");
    assert_eq!(page(&plain).status, 303);
    assert_eq!(page(&format!("countwheel_session=x; {cookie}")).status, 200);
    let mut client = server.client();
    let html = ("accept", "text/html");
    let answer = client.send("GET", "/dead", &[html, ("cookie", &plain)], b"");
    assert_eq!(answer.status, 200, "without TLS the name is the plain one");
    let proxied = [html, ("x-forwarded-proto", "https"), ("cookie", &plain)];
    assert_eq!(client.send("GET", "/dead", &proxied, b"").status, 303);
    // A logout has the browser forget the cookie of that name.
    let key = page(cookie);
    let key = String::from_utf8(key.body).unwrap();
    let (_, key) = key.split_once("name=\"form_key\" value=\"").unwrap();
    let form = format!("form_key={}", key.split('"').next().unwrap());
    let length = form.len();
    let out = say(&format!(
        "POST /logout HTTP/1.1\r\nhost: localhost\r\ncookie: {cookie}\r\ncontent-type: application/x-www-form-urlencoded\r\n\
         content-length: {length}\r\n\r\n{form}"
    ));
    let set = out.header("set-cookie").unwrap();
    assert!(
        set.starts_with("__Host-countwheel_session=; Path=/; Max-Age=0;"),
        "{set}"
    );
    assert_eq!(page(cookie).status, 303);
}
