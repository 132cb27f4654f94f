//! Opens the connection to the manager that the environment names, and reads what its errors carry.

use std::{env, fs, time::Duration};

use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig},
};
use tonic_types::StatusExt;

pub type Failure = Box<dyn std::error::Error>;
pub type Authorized = InterceptedService<Channel, Bearer>;

/// Adds the caller's token to every call.
#[derive(Clone)]
pub struct Bearer(MetadataValue<Ascii>);

impl Bearer {
    pub fn new(token: &str) -> Result<Self, Failure> {
        Ok(Self(format!("Bearer {token}").parse()?))
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

pub async fn connect() -> Result<Channel, Failure> {
    let ca = Certificate::from_pem(fs::read(env::var("RETINUE_CA")?)?);
    // Every manager's certificate carries this name, whatever address is dialled.
    let tls = ClientTlsConfig::new().ca_certificate(ca).domain_name("manager.retinue");
    let channel = Channel::from_shared(format!("https://{}", env::var("RETINUE_ENDPOINT")?))?
        .tls_config(tls)?
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10));
    Ok(channel.connect().await?)
}

/// Returns the word by which programs tell errors apart; docs/reference/errors.md lists them.
pub fn reason(error: &Status) -> String {
    error.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}
