// SPDX-License-Identifier: Apache-2.0
//
// The tier in Redis, with a server where there is one: redis-server in PATH, or what
// scripts/redis-here unpacked. Without one, and without hiredis, a test says that it was skipped.

#[path = "../examples/shared_prefix.rs"]
mod shared_prefix;

use kvfolio::tiers::{RedisOptions, RedisTls, TierHandle};
use kvfolio::Error;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// None: the library was built without hiredis.
fn tier(options: &RedisOptions<'_>) -> Option<Result<TierHandle, Error>> {
    match TierHandle::redis(options) {
        Err(Error::Unsupported(why)) => {
            println!("SKIPPED: {why}");
            None
        }
        made => Some(made),
    }
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// None: there is no redis-server here.
    fn start() -> Option<Server> {
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../build/redis/bin/redis-server");
        let program = if Path::new(here).exists() { here } else { "redis-server" };
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let started = Command::new(program)
                .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
                .args(["--save", "", "--appendonly", "no", "--requirepass", "a secret"])
                .current_dir(std::env::temp_dir())
                .stdout(Stdio::null())
                .spawn();
            let child = match started {
                Ok(child) => child,
                Err(_) => {
                    println!("SKIPPED: no redis-server here; scripts/redis-here unpacks one");
                    return None;
                }
            };
            let mut server = Server { child, address: format!("127.0.0.1:{port}") };
            for _ in 0..1000 {
                let answers = TcpStream::connect(&server.address).is_ok();
                std::thread::sleep(Duration::from_millis(if answers { 100 } else { 10 }));
                // It ends if the port was taken meanwhile.
                if server.child.try_wait().unwrap().is_some() {
                    break;
                }
                if answers {
                    return Some(server);
                }
            }
        }
        panic!("redis-server does not listen");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

#[test]
fn what_one_process_computed_another_one_finds_in_redis() {
    if tier(&RedisOptions { servers: "127.0.0.1:1", ..RedisOptions::default() }).is_none() {
        return;
    }
    let server = match Server::start() {
        Some(server) => server,
        None => return,
    };
    let password = Some("a secret");
    assert_eq!(shared_prefix::serve(&server.address, password).unwrap(), (0, 64));
    assert_eq!(shared_prefix::serve(&server.address, password).unwrap(), (1024, 0));

    let options = RedisOptions { servers: &server.address, password, ..RedisOptions::default() };
    let mut tier = TierHandle::redis(&options).unwrap();
    tier.wait_until_ready(0, 10_000_000).unwrap();
    assert!(tier.event_fd().is_some());
    let counters = tier.redis_counters().unwrap();
    assert!(counters.connections > 0 && counters.bytes_sent > 0, "{counters:?}");
    assert!(tier.describe().contains(&server.address), "{}", tier.describe());

    let wrong = RedisOptions { password: Some("not it"), ..options };
    let mut refused = TierHandle::redis(&wrong).unwrap();
    let error = refused.wait_until_ready(0, 100_000).unwrap_err();
    assert!(matches!(error, Error::TimedOut(_)), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let options = RedisOptions { servers: "127.0.0.1:1", ..RedisOptions::default() };
    let mut tier = match tier(&options) {
        Some(tier) => tier.unwrap(),
        None => return,
    };
    let error = tier.wait_until_ready(0, 10_000).unwrap_err();
    assert!(matches!(&error, Error::TimedOut(why) if why.contains("127.0.0.1:1")), "{error}");
    assert_eq!(tier.redis_counters().unwrap().connections, 0);
}

#[test]
fn options_that_cannot_be_are_refused() {
    let good = RedisOptions { servers: "127.0.0.1:1", ..RedisOptions::default() };
    let no_file = RedisTls { ca_file: Some(Path::new("/no/such/file")), ..RedisTls::default() };
    let bad = [
        RedisOptions::default(),
        RedisOptions { servers: "127.0.0.1", ..good },
        RedisOptions { password: Some("a\0b"), ..good },
        RedisOptions { user: Some("someone"), ..good }, // without a password
        RedisOptions { key_prefix: Some("{slot}"), ..good },
        RedisOptions { tls: Some(no_file), ..good },
        RedisOptions { items_max: -1, ..good },
    ];
    for options in &bad {
        match tier(options) {
            Some(made) => assert!(matches!(made, Err(Error::InvalidArgument(_))), "{options:?}"),
            None => return,
        }
    }
    let secret = RedisOptions { password: Some("a secret"), ..good };
    assert!(!format!("{secret:?}").contains("secret"));
}

#[test]
fn tiers_of_other_kinds_are_ready_and_have_no_such_counters() {
    let mut cache = kvfolio::Cache::with_storage(
        kvfolio::Storage::new(&[kvfolio::GroupSpec {
            head_dim_k: 8,
            num_blocks: 8,
            ..Default::default()
        }])
        .unwrap(),
        &Default::default(),
    )
    .unwrap();
    let mut tier = TierHandle::memory(&mut cache, 1 << 16).unwrap();
    tier.wait_until_ready(0, 0).unwrap();
    assert!(matches!(tier.redis_counters(), Err(Error::Unsupported(_))));
    assert_eq!(tier.describe(), "memory");
}
