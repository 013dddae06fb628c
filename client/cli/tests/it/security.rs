//! Commands about who is let in, against a fake master that keeps one principal, one level and one tenant.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::pin::Pin;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use futures::Stream;
use mc_proto::v1::master_server::{Master, MasterServer};
use mc_proto::v1::set_security_request::Change;
use mc_proto::{VERSIONS, status_of, v1};
use mc_types::{Code, Token};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status, Streaming};

const NAME: &str = "tenant/a/rw/engine";

/// State of the fake master.
#[derive(Default)]
struct Known {
    tls_level: u32,
    principal: Option<v1::Principal>,
    token_hash: Vec<u8>,
    tenant: v1::Tenant,
}

struct Fake {
    address: String,
    known: Arc<Mutex<Known>>,
}

/// A master that leads, until it is dropped.
struct Pool {
    address: String,
    known: Arc<Mutex<Known>>,
    _runtime: Runtime,
}

impl Pool {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let known = Arc::new(Mutex::new(Known { tls_level: 1, ..Known::default() }));
        let fake = Fake { address: address.clone(), known: known.clone() };
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
            let server = tonic::transport::Server::builder().add_service(MasterServer::new(fake));
            server.serve_with_incoming(incoming).await.unwrap();
        });
        Self { address, known, _runtime: runtime }
    }

    fn run(&self, line: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mcctl"));
        command.args(["--masters", &self.address, "--tls-dir", "none"]).args(line);
        command.env_remove("MC_TENANT").env_remove("MC_TOKEN_FILE").output().unwrap()
    }

    /// Runs a command that must end with this exit code, and returns its document.
    fn json(&self, code: i32, line: &str) -> Value {
        let line: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        let output = self.run(&line);
        assert_eq!(output.status.code(), Some(code), "{line:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn hash(&self) -> Vec<u8> {
        self.known.lock().unwrap().token_hash.clone()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn hash(token: &str) -> Vec<u8> {
    token.trim().parse::<Token>().unwrap().hash().0.to_vec()
}

fn leader(address: &str) -> v1::Leader {
    v1::Leader { node_id: vec![0, 0, 0, 0, 0, 0, 0, 1].into(), address: address.to_owned(), term: 1 }
}

type Sent<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Master for Fake {
    type WatchStream = Sent<v1::WatchEvent>;
    type HeartbeatStream = Sent<v1::StoreHeartbeatReply>;

    async fn hello(&self, _: Request<v1::HelloRequest>) -> Result<Response<v1::HelloReply>, Status> {
        Ok(Response::new(v1::HelloReply {
            version_min: *VERSIONS.start(),
            version_max: *VERSIONS.end(),
            cluster_id: vec![7; 16].into(),
            node_id: leader("").node_id,
            leader: Some(leader(&self.address)),
            masters: vec![self.address.clone()],
            tls_level: self.known.lock().unwrap().tls_level,
            ..v1::HelloReply::default()
        }))
    }

    async fn watch(&self, _: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(futures::stream::pending())))
    }

    async fn heartbeat(
        &self,
        _: Request<Streaming<v1::StoreHeartbeat>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        Err(Status::unimplemented("there are no stores"))
    }

    async fn get_security(
        &self,
        _: Request<v1::GetSecurityRequest>,
    ) -> Result<Response<v1::GetSecurityReply>, Status> {
        let known = self.known.lock().unwrap();
        Ok(Response::new(v1::GetSecurityReply {
            tls_level: known.tls_level,
            principals: known.principal.clone().into_iter().collect(),
            cut_off: vec![v1::CutOff { who: "store kv-0".into(), why: "it has no certificate".into() }],
        }))
    }

    async fn set_security(
        &self,
        request: Request<v1::SetSecurityRequest>,
    ) -> Result<Response<v1::SetSecurityReply>, Status> {
        let refuse = |message: &str| {
            let (code, message) = (Code::InvalidParams as i32, message.to_owned());
            Err(status_of(&v1::ErrorDetail { code, message, ..v1::ErrorDetail::default() }))
        };
        let (request, mut known) = (request.into_inner(), self.known.lock().unwrap());
        let set = match request.change.unwrap() {
            Change::TlsLevel(3) if !request.force => return refuse("store kv-0 would be cut off"),
            Change::TlsLevel(level) => {
                known.tls_level = level;
                return Ok(Response::new(v1::SetSecurityReply {}));
            }
            Change::Principal(set) => set,
        };
        if set.known.is_some_and(|wanted| wanted != known.principal.is_some()) {
            return refuse("it is known, or not");
        }
        if set.forget {
            known.principal = None;
            return Ok(Response::new(v1::SetSecurityReply {}));
        }
        let mut principal = known.principal.take().unwrap_or_default();
        principal.name = set.name;
        if let Some(hash) = set.token_hash {
            known.token_hash = hash.to_vec();
            principal.has_token = true;
        }
        principal.certificates = set.certificates.map_or(principal.certificates, |set| set.uris);
        principal.expires_s = set.expires_s.unwrap_or(principal.expires_s);
        principal.denied = set.denied.unwrap_or(principal.denied);
        known.principal = Some(principal);
        Ok(Response::new(v1::SetSecurityReply {}))
    }

    async fn who_am_i(&self, _: Request<v1::WhoAmIRequest>) -> Result<Response<v1::WhoAmIReply>, Status> {
        Ok(Response::new(v1::WhoAmIReply {
            identity: format!("spiffe://prod/mc/{NAME}"),
            tls: true,
            tenant: Some("a".into()),
            calls: vec!["BatchGet".into(), "BatchPutStart".into()],
            expires_s: 2_000_000_000,
        }))
    }

    async fn list_tenants(
        &self,
        _: Request<v1::ListTenantsRequest>,
    ) -> Result<Response<v1::ListTenantsReply>, Status> {
        let tenants = vec![self.known.lock().unwrap().tenant.clone()];
        Ok(Response::new(v1::ListTenantsReply { tenants, more: false }))
    }

    async fn set_tenant(
        &self,
        request: Request<v1::SetTenantRequest>,
    ) -> Result<Response<v1::SetTenantReply>, Status> {
        let (request, mut known) = (request.into_inner(), self.known.lock().unwrap());
        known.tenant.name = request.tenant;
        known.tenant.quota = request.quota;
        known.tenant.calls_per_s = request.calls_per_s.unwrap_or(known.tenant.calls_per_s);
        known.tenant.avoids_rdma = request.rdma.map_or(known.tenant.avoids_rdma, |allowed| !allowed);
        Ok(Response::new(v1::SetTenantReply {}))
    }

    mc_testkit::not_served! {
        "no command of these tests calls this":
        status(StatusRequest) -> StatusReply;
        batch_exist(BatchExistRequest) -> BatchExistReply;
        batch_get(BatchGetRequest) -> BatchGetReply;
        batch_describe(BatchDescribeRequest) -> BatchDescribeReply;
        report_mismatch(ReportMismatchRequest) -> ReportMismatchReply;
        list_keys(ListKeysRequest) -> ListKeysReply;
        batch_put_start(BatchPutStartRequest) -> BatchPutStartReply;
        batch_put_end(BatchPutEndRequest) -> BatchPutEndReply;
        batch_put_revoke(BatchPutRevokeRequest) -> BatchPutRevokeReply;
        batch_remove(BatchRemoveRequest) -> BatchRemoveReply;
        remove_all(RemoveAllRequest) -> RemoveAllReply;
        batch_drop_replicas(BatchDropReplicasRequest) -> BatchDropReplicasReply;
        mount_store(MountStoreRequest) -> MountStoreReply;
        unmount_store(UnmountStoreRequest) -> UnmountStoreReply;
        list_members(ListMembersRequest) -> ListMembersReply;
        transfer_leader(TransferLeaderRequest) -> TransferLeaderReply;
        add_member(AddMemberRequest) -> AddMemberReply;
        remove_member(RemoveMemberRequest) -> RemoveMemberReply;
        get_config(GetConfigRequest) -> GetConfigReply;
        set_config(SetConfigRequest) -> SetConfigReply;
        finish_upgrade(FinishUpgradeRequest) -> FinishUpgradeReply;
        read_audit(ReadAuditRequest) -> ReadAuditReply;
    }
}

#[test]
fn a_token_is_printed_once_or_written_to_a_file_for_its_owner_alone() {
    let (pool, dir) = (Pool::start(), tempfile::tempdir().unwrap());
    let printed = pool.run(&["principals", "add", NAME, "--token"]);
    assert_eq!(printed.status.code(), Some(0), "{}", text(&printed.stderr));
    assert_eq!(text(&printed.stdout).lines().count(), 1, "the token and nothing else");
    assert_eq!(hash(text(&printed.stdout)), pool.hash());
    assert!(text(&printed.stderr).contains("not shown again"));

    let file = dir.path().join("token");
    let path = file.to_str().unwrap();
    let written = pool.json(0, &format!("principals token {NAME} --token-to {path}"));
    assert_eq!(
        written,
        json!({ "principal": NAME, "result": "new token", "token": null, "token_file": path })
    );
    assert_eq!(hash(&fs::read_to_string(&file).unwrap()), pool.hash());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    // A file that is there is kept, and so is the token of the principal.
    let before = pool.hash();
    pool.json(2, &format!("principals token {NAME} --token-to {path}"));
    assert_eq!(pool.hash(), before);
    let other = dir.path().join("other");
    pool.json(2, &format!("principals add {NAME} --token-to {}", other.display()));
    assert!(!other.exists(), "no file is left with a token that is none");
}

#[test]
fn a_principal_is_listed_denied_allowed_and_forgotten() {
    let pool = Pool::start();
    let add =
        format!("principals add spiffe://prod/mc/{NAME} --certificate spiffe://k8s/ns/a/* --expires 30d");
    let added = json!({ "principal": NAME, "result": "added", "token": null, "token_file": null });
    assert_eq!(pool.json(0, &add), added);
    let listed = || pool.json(0, "principals list")["principals"][0].clone();
    assert_eq!((&listed()["name"], &listed()["has_token"]), (&json!(NAME), &json!(false)));
    assert_eq!(listed()["certificates"], json!(["spiffe://k8s/ns/a/*"]));
    assert!(listed()["expires"].is_string());
    assert_eq!(pool.json(0, &format!("principals deny {NAME}"))["result"], "denied");
    assert_eq!(listed()["denied"], true);
    assert_eq!(pool.json(0, &format!("principals allow {NAME}"))["result"], "allowed");
    assert_eq!(listed()["denied"], false);
    assert_eq!(pool.json(0, &format!("principals rm {NAME}"))["result"], "removed");
    assert_eq!(listed(), Value::Null);
    assert_eq!(pool.json(2, &format!("principals rm {NAME}"))["code"], "INVALID_PARAMS");
    let wrong = pool.json(2, "principals add engine");
    assert!(wrong["error"].as_str().unwrap().contains("tenant/TENANT/rw/NAME"), "{wrong}");
}

#[test]
fn the_level_goes_up_to_require_over_processes_that_it_cuts_off_only_by_force() {
    let pool = Pool::start();
    assert_eq!(pool.json(0, "security tls prefer"), json!({ "tls": "prefer" }));
    let status = pool.json(0, "security status");
    assert_eq!((&status["tls"], &status["cut_off"][0]["who"]), (&json!("prefer"), &json!("store kv-0")));
    let refused = pool.json(2, "security tls require");
    assert!(refused["error"].as_str().unwrap().contains("store kv-0"), "{refused}");
    pool.json(0, "security tls require --force");
    assert_eq!(pool.json(0, "security status")["tls"], "require");
}

#[test]
fn whoami_ends_with_1_for_a_call_or_a_tenant_that_is_not_allowed() {
    let pool = Pool::start();
    let me = pool.json(0, "whoami");
    assert_eq!(me["identity"], format!("spiffe://prod/mc/{NAME}"));
    assert_eq!((&me["expires"], &me["can"]), (&json!("2033-05-18T03:33:20Z"), &Value::Null));
    for (code, line) in [
        (0, "whoami --can BatchGet"),
        (0, "whoami --can batchget --tenant a"),
        (1, "whoami --can BatchGet --tenant b"),
        (1, "whoami --can SetConfig"),
    ] {
        assert_eq!(pool.json(code, line)["can"], code == 0, "{line}");
    }
    pool.json(2, "whoami --can get");
}

#[test]
fn a_limit_on_calls_leaves_the_quota_as_it_is() {
    let pool = Pool::start();
    pool.json(0, "tenants set a --bytes 1gb --objects 7");
    pool.json(0, "tenants set a --calls 500");
    pool.json(0, "tenants set a --objects 9");
    let tenant = pool.json(0, "tenants list")["tenants"][0].clone();
    let limits = ["quota_bytes", "quota_objects", "calls_per_s"].map(|limit| tenant[limit].as_u64().unwrap());
    assert_eq!(limits, [1 << 30, 9, 500]);
}

#[test]
fn a_token_without_an_authority_is_refused_in_words() {
    let pool = Pool::start();
    let refused = pool.json(2, "whoami --token-file /no/such/token");
    assert!(refused["error"].as_str().unwrap().contains("MC_TLS_CA"), "{refused}");
}
