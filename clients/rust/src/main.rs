//! The scenario of all clients: see ../../README.md.

mod connection;

use std::{collections::BTreeSet, env, time::Duration};

use tokio_stream::iter;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use connection::{Authorized, Bearer, Failure, connect, reason};
use manager::{
    account_service_client::AccountServiceClient, kernel_service_client::KernelServiceClient,
    session_service_client::SessionServiceClient, *,
};

/// Messages and clients as the build script made them.
pub mod retinue {
    pub mod manager {
        pub mod v1 {
            tonic::include_proto!("retinue.manager.v1");
        }
    }
    pub mod types {
        pub mod v1 {
            tonic::include_proto!("retinue.types.v1");
        }
    }
}
use retinue::{manager::v1 as manager, types::v1 as types};

struct Client {
    sessions: SessionServiceClient<Authorized>,
    kernels: KernelServiceClient<Authorized>,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let channel = connect().await?;
    let bearer = Bearer::new(&env::var("RETINUE_TOKEN")?)?;
    let mut accounts = AccountServiceClient::with_interceptor(channel.clone(), bearer.clone());
    let caller = accounts.get_caller(GetCallerRequest {}).await?.into_inner();
    println!("caller: {}", caller.user.unwrap_or_default().name);
    let mut stranger = AccountServiceClient::with_interceptor(channel.clone(), Bearer::new("rtn_wrong")?);
    refused(stranger.get_caller(GetCallerRequest {}).await, Code::Unauthenticated, "TOKEN_INVALID");

    let mut client = Client {
        sessions: SessionServiceClient::with_interceptor(channel.clone(), bearer.clone()),
        kernels: KernelServiceClient::with_interceptor(channel, bearer),
    };
    client.refusals().await;
    let created = client.create().await?;
    let id = &created.session.as_ref().ok_or("no session")?.id;
    client.watch_until_running(&created).await?;
    client.read_logs(id).await?;
    client.attach(id).await?;
    client.run_code(id).await?;
    client.open_port(id).await?;
    client.end(&created).await?;
    println!("scenario: ok");
    Ok(())
}

impl Client {
    /// Shows what an error carries: a code, a reason, the wrong fields, the id of the request.
    async fn refusals(&mut self) {
        let wrong = SessionSpec {
            name: "Not A Name".into(),
            r#type: SessionType::Batch.into(),
            cluster_size: -1,
            ..Default::default()
        };
        let request = CreateSessionRequest { spec: Some(wrong), ..Default::default() };
        let error = refused(self.sessions.create_session(request).await, Code::InvalidArgument, "INVALID_FIELD");
        let violations = error.get_details_bad_request().map(|found| found.field_violations).unwrap_or_default();
        for violation in &violations {
            println!("refused: {} {}", violation.field, violation.description);
        }
        for field in ["spec.name", "spec.cluster_size"] {
            assert!(violations.iter().any(|violation| violation.field == field), "{field} is not among them");
        }
        assert!(error.metadata().contains_key("x-request-id"), "no request id in the trailers");
        let unknown = GetSessionRequest { session: "no-such-session".into() };
        refused(self.sessions.get_session(unknown).await, Code::NotFound, "NOT_FOUND");
    }

    /// Asks for three kernels on two nodes, twice with one request id, which makes one session.
    async fn create(&mut self) -> Result<CreateSessionResponse, Status> {
        let server = "echo hello from $BACKENDAI_CLUSTER_HOST; exec python3 -m http.server 8000 --bind 127.0.0.1";
        let main = KernelSpec { command: words(&["sh", "-c", server]), ..Default::default() };
        let slots = [("cpu", "2"), ("mem", "200m")].map(|(name, amount)| (name.into(), amount.into()));
        let spec = SessionSpec {
            name: "clients-rust".into(),
            r#type: SessionType::Interactive.into(),
            cluster_size: 3,
            cluster_mode: ClusterMode::MultiNode.into(),
            kernel: Some(KernelSpec { slots: slots.into(), ..Default::default() }),
            roles: vec![RoleSpec { role: "main".into(), kernel: Some(main), count: None }],
            service_ports: vec![types::ServicePort {
                name: "web".into(),
                protocol: "http".into(),
                ports: vec![8000],
                ..Default::default()
            }],
            ..Default::default()
        };
        let request_id = uuid::Uuid::new_v4().to_string();
        let request = CreateSessionRequest { spec: Some(spec), request_id, ..Default::default() };
        // tonic does not repeat calls by itself: this one may be repeated on UNAVAILABLE because of its request id.
        let created = self.sessions.create_session(request.clone()).await?.into_inner();
        let again = self.sessions.create_session(request).await?.into_inner();
        assert_eq!(session_id(&again), session_id(&created), "one session for one request id");
        println!("created: {}", session_id(&created));
        Ok(created)
    }

    /// Gives every change of a session, from its creation on, until `done` or the session has ended.
    async fn watch(
        &mut self,
        created: &CreateSessionResponse,
        mut done: impl FnMut(session_event::Change) -> bool,
    ) -> Result<(), Status> {
        let mut after = created.position.clone().expect("there is a position");
        after.revision -= 1;
        let request = WatchSessionsRequest {
            session_id: session_id(created).into(),
            after: Some(after),
            until_ended: true,
            ..Default::default()
        };
        let mut responses = self.sessions.watch_sessions(request).await?.into_inner();
        while let Some(response) = responses.message().await? {
            if response.events.into_iter().filter_map(|event| event.change).any(&mut done) {
                break;
            }
        }
        Ok(())
    }

    async fn watch_until_running(&mut self, created: &CreateSessionResponse) -> Result<(), Status> {
        let mut running = false;
        self.watch(created, |change| {
            if let session_event::Change::SessionMoved(moved) = change {
                println!("session: {}", moved.to_state().as_str_name());
                running = moved.to_state() == SessionState::Running;
            }
            running
        })
        .await?;
        assert!(running, "the session ended before it ran");
        let request = GetSessionRequest { session: session_id(created).into() };
        let kernels = self.sessions.get_session(request).await?.into_inner().session.unwrap_or_default().kernels;
        let agents: BTreeSet<_> = kernels.iter().map(|kernel| &kernel.agent).collect();
        assert_eq!((kernels.len(), agents.len()), (3, 2), "three kernels on two nodes");
        Ok(())
    }

    async fn read_logs(&mut self, id: &str) -> Result<(), Status> {
        let request = StreamLogsRequest { session: id.into(), follow: true, ..Default::default() };
        let mut pieces = self.kernels.stream_logs(request).await?.into_inner();
        let mut logs = String::new();
        while !logs.contains("hello from main1\n") {
            logs += &text(&pieces.message().await?.expect("the logs ended").data);
        }
        println!("logs: {logs:?}");
        Ok(())
    }

    /// Runs a command in main1 that reads its input and reaches another kernel.
    async fn attach(&mut self, id: &str) -> Result<(), Status> {
        use attach_request::Step as Sent;
        use types::{command_input, command_output::Step as Got};
        let spec = types::CommandSpec {
            command: words(&["sh", "-c", "read line; echo got $line; ssh sub2 hostname; exit 7"]),
            ..Default::default()
        };
        let start = AttachStart { session: id.into(), spec: Some(spec), ..Default::default() };
        let line = types::CommandInput { step: Some(command_input::Step::Stdin("a line\n".into())) };
        let steps = [Sent::Start(start), Sent::Input(line)];
        let requests = iter(steps.map(|step| AttachRequest { step: Some(step) }));
        let mut responses = self.kernels.attach(requests).await?.into_inner();
        let (mut output, mut exit_code) = (String::new(), -1);
        while let Some(response) = responses.message().await? {
            match response.output.and_then(|output| output.step) {
                Some(Got::Stdout(data)) => output += &text(&data),
                Some(Got::Exited(exited)) => exit_code = exited.exit_code,
                _ => {}
            }
        }
        assert_eq!((output.as_str(), exit_code), ("got a line\nsub2\n", 7));
        println!("attach: {output:?}, exit code {exit_code}");
        Ok(())
    }

    async fn run_code(&mut self, id: &str) -> Result<(), Status> {
        use execute_code_request::Step as Sent;
        use types::{code_event::Event, code_input, code_output::Step as Got};
        let open = CodeOpen { session: id.into(), ..Default::default() };
        let runs = ["print(sum(range(10)))", "1/0", "6 * 7"].map(|code| {
            let program = Some(types::code_run::Program::Code(code.into()));
            let run = code_input::Step::Run(types::CodeRun { program, ..Default::default() });
            Sent::Input(types::CodeInput { step: Some(run) })
        });
        let steps: Vec<_> = [Sent::Open(open)].into_iter().chain(runs).collect();
        let requests = iter(steps.into_iter().map(|step| ExecuteCodeRequest { step: Some(step) }));
        let mut responses = self.kernels.execute_code(requests).await?.into_inner();
        let mut seen = Vec::new();
        while let Some(response) = responses.message().await? {
            let Some(Got::Events(events)) = response.output.and_then(|output| output.step) else { continue };
            for event in events.events {
                match event.event {
                    Some(Event::Stdout(printed)) => seen.push(printed.trim().to_owned()),
                    Some(Event::Media(media)) => seen.push(text(&media.forms[0].data)),
                    Some(Event::Finished(finished)) => seen.push(finished.status().as_str_name().into()),
                    _ => {}
                }
            }
        }
        assert_eq!(seen, ["45", "CODE_STATUS_OK", "CODE_STATUS_ERROR", "42", "CODE_STATUS_OK"]);
        println!("code: {seen:?}");
        Ok(())
    }

    /// Speaks HTTP to a service port of the session; its program may need a moment until it listens.
    async fn open_port(&mut self, id: &str) -> Result<(), Status> {
        let page = loop {
            match self.get(id, "web").await {
                Err(error) if reason(&error) == "PORT_CLOSED" => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                done => break done?,
            }
        };
        assert!(page.starts_with("HTTP/1.0 200 OK"), "{page}");
        println!("port: {}", page.lines().next().unwrap_or_default());
        refused(self.get(id, "nothing").await, Code::NotFound, "NOT_FOUND");
        Ok(())
    }

    async fn get(&mut self, id: &str, port: &str) -> Result<String, Status> {
        use open_port_request::Step as Sent;
        let start = OpenPortStart { session: id.into(), port: port.into(), ..Default::default() };
        let steps = [Sent::Start(start), Sent::Data("GET / HTTP/1.0\r\n\r\n".into())];
        let requests = iter(steps.map(|step| OpenPortRequest { step: Some(step) }));
        let mut responses = self.kernels.open_port(requests).await?.into_inner();
        let mut page = String::new();
        while let Some(response) = responses.message().await? {
            if let Some(open_port_response::Step::Data(data)) = response.step {
                page += &text(&data);
            }
        }
        Ok(page)
    }

    async fn end(&mut self, created: &CreateSessionResponse) -> Result<(), Status> {
        let request = TerminateSessionRequest { session: session_id(created).into(), ..Default::default() };
        self.sessions.terminate_session(request).await?;
        let mut last = SessionState::Unspecified;
        self.watch(created, |change| {
            if let session_event::Change::SessionMoved(moved) = change {
                last = moved.to_state();
            }
            false
        })
        .await?;
        assert_eq!(last, SessionState::Terminated);
        println!("session: {}", last.as_str_name());
        Ok(())
    }
}

fn session_id(created: &CreateSessionResponse) -> &str {
    created.session.as_ref().map_or("", |session| &session.id)
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| word.to_string()).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the error that a call has to end with.
fn refused<T>(result: Result<T, Status>, code: Code, word: &str) -> Status {
    let Err(error) = result else { panic!("the call was not refused") };
    assert_eq!((error.code(), reason(&error).as_str()), (code, word), "{error}");
    error
}
