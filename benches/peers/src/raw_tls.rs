//! rustls over a bare socket of tokio: what encryption costs where nothing else is done. A frame is 8 bytes of length and a
//! payload, which comes back; answers come in the order of calls.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex as BlockingMutex, PoisonError};

use bytes::{Bytes, BytesMut};
use farcall::Config;
use farcall::tls::TlsConfig;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, oneshot};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::args::Args;
use crate::load::Caller;
use crate::{Contestant, Result};

pub(crate) struct RawTls;

/// Writes the certificates of a CA and of both ends, which are this machine.
pub(crate) fn certificates(directory: &str) -> Result<()> {
    let directory = std::path::Path::new(directory);
    std::fs::create_dir_all(directory)?;
    let mut ca = CertificateParams::new([])?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate()?;
    std::fs::write(directory.join("ca.pem"), ca.self_signed(&ca_key)?.pem())?;
    let key = KeyPair::generate()?;
    let ends = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    let cert = ends.signed_by(&key, &Issuer::new(ca, ca_key))?;
    std::fs::write(directory.join("cert.pem"), cert.pem())?;
    Ok(std::fs::write(directory.join("key.pem"), key.serialize_pem())?)
}

fn files(args: &Args) -> Result<TlsConfig> {
    Ok(Config::from_toml(&args.settings)?.tls.ok_or("raw-tls needs --set tls.ca, tls.cert and tls.key")?)
}

impl Contestant for RawTls {
    type Client = Client;

    async fn serve(args: Args) -> Result<()> {
        let files = files(&args)?;
        let chain = CertificateDer::pem_file_iter(files.cert.ok_or("no tls.cert")?)?
            .collect::<std::result::Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_file(files.key.ok_or("no tls.key")?)?;
        let config = ServerConfig::builder_with_provider(default_provider().into());
        let config = config.with_safe_default_protocol_versions()?.with_no_client_auth();
        let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key)?));
        let listener = TcpListener::bind(&args.address).await?;
        crate::listening(listener.local_addr()?)?;
        loop {
            let (socket, _) = listener.accept().await?;
            socket.set_nodelay(true)?;
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let (mut reading, mut writing) = split(acceptor.accept(socket).await?);
                while let Ok(payload) = read(&mut reading).await {
                    write(&mut writing, &payload).await?;
                }
                std::io::Result::Ok(())
            });
        }
    }

    async fn connect(args: Args) -> Result<Client> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(files(&args)?.ca.ok_or("no tls.ca")?)?)?;
        let config = ClientConfig::builder_with_provider(default_provider().into());
        let config = config.with_safe_default_protocol_versions()?.with_root_certificates(roots);
        let connector = TlsConnector::from(Arc::new(config.with_no_client_auth()));
        let socket = TcpStream::connect(&args.address).await?;
        socket.set_nodelay(true)?;
        let stream = connector.connect(ServerName::try_from("localhost")?, socket).await?;
        let (mut reading, writing) = split(stream);
        let waiting = Arc::<BlockingMutex<VecDeque<oneshot::Sender<Bytes>>>>::default();
        let client = Client { writing: Arc::new(Mutex::new(writing)), waiting: waiting.clone() };
        tokio::spawn(async move {
            while let Ok(payload) = read(&mut reading).await {
                let caller = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                // A caller that is gone wants no answer.
                let _ = caller.map(|caller| caller.send(payload));
            }
        });
        Ok(client)
    }
}

async fn read<R: AsyncRead>(reading: &mut ReadHalf<R>) -> std::io::Result<Bytes> {
    let mut missing = reading.read_u64_le().await? as usize;
    let mut payload = BytesMut::with_capacity(missing);
    while missing > 0 {
        let n = reading.take(missing as u64).read_buf(&mut payload).await?;
        if n == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        missing -= n;
    }
    Ok(payload.freeze())
}

async fn write<W: tokio::io::AsyncWrite>(writing: &mut WriteHalf<W>, payload: &Bytes) -> std::io::Result<()> {
    writing.write_u64_le(payload.len() as u64).await?;
    writing.write_all(payload).await?;
    writing.flush().await
}

#[derive(Clone)]
pub(crate) struct Client {
    writing: Arc<Mutex<WriteHalf<TlsStream<TcpStream>>>>,
    waiting: Arc<BlockingMutex<VecDeque<oneshot::Sender<Bytes>>>>,
}

impl Caller for Client {
    async fn call(&mut self, payload: &Bytes) -> Result<usize> {
        let (sender, answer) = oneshot::channel();
        {
            let mut writing = self.writing.lock().await;
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(sender);
            write(&mut writing, payload).await?;
        }
        Ok(answer.await?.len())
    }
}
