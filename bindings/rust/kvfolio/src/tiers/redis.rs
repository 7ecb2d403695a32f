// SPDX-License-Identifier: Apache-2.0
//
// The tier in Redis. SAFETY of every call here: handles live as long as the call, and so do texts.

use super::{sys, RecordKeys, TierHandle};
use crate::error::call;
use crate::{Error, Result};
use std::ffi::CString;
use std::os::raw::c_char;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{null, null_mut};

/// `RedisTls` in `redis_tier.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedisTls<'a> {
    /// PEM; `None`: the system's.
    pub ca_file: Option<&'a Path>,
    /// PEM; this client's certificate.
    pub cert_file: Option<&'a Path>,
    /// PEM; the certificate's key.
    pub key_file: Option<&'a Path>,
    /// The name that every certificate must have; `None`: the host of the node.
    pub server_name: Option<&'a str>,
}

/// `RedisOptions` in `redis_tier.h`, which says the limits. 0 and `None` are the default of all but
/// `servers`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct RedisOptions<'a> {
    /// `"HOST:PORT,HOST:PORT"`: nodes of one cluster, or one server.
    pub servers: &'a str,
    /// A user of the server's ACL; `None`: the default user.
    pub user: Option<&'a str>,
    /// The password of the user; `None`: none.
    pub password: Option<&'a str>,
    /// What the names of all records begin with; `None`: `"kvfolio:"`.
    pub key_prefix: Option<&'a str>,
    /// How connections are encrypted; `None`: not at all.
    pub tls: Option<RedisTls<'a>>,
    /// Milliseconds that a record lives. 0: the server's policy decides.
    pub ttl_ms: u64,
    /// Bytes of the largest record. 0: 64 MiB.
    pub record_bytes_max: i64,
    /// Items that are accepted and not done. 0: 4,096.
    pub items_max: i32,
    /// Bytes that are under way on one connection; other items wait. 0: 8 MiB.
    pub bytes_in_flight_max: i64,
    /// Bytes that one poll moves. 0: 512 KiB.
    pub bytes_per_poll: i64,
    /// Microseconds until a new connection must have answered. 0: 200,000.
    pub connect_timeout_us: u64,
    /// Microseconds without a byte after which a connection that owes a reply is given up. 0: 500,000.
    pub stall_timeout_us: u64,
    /// Microseconds that a node is left alone after it failed three times. 0: 500,000.
    pub breaker_us_min: u64,
    /// The most microseconds: the pause doubles each time up to this. 0: 5,000,000.
    pub breaker_us_max: u64,
    /// As [`DiskOptions::keys`](super::DiskOptions); all programs that share a `key_prefix` need the same.
    pub keys: RecordKeys<'a>,
}

// The password is in no log.
impl std::fmt::Debug for RedisOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisOptions")
            .field("servers", &self.servers)
            .field("user", &self.user)
            .field("key_prefix", &self.key_prefix)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

of_c! {
    /// `RedisCounters` in `redis_tier.h`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RedisCounters = kvfolio_redis_tier_counters {
        /// Stores that a server refused: it is full, read only, or does not allow them.
        pub stores_refused: u64,
        /// Answers that named another server: MOVED and ASK.
        pub redirects: u64,
        /// Items that were sent again.
        pub retries: u64,
        /// Connections that a server answered.
        pub connections: u64,
        /// Connections that ended while they were in use.
        pub connections_lost: u64,
        /// Replies that did not fit their question.
        pub replies_refused: u64,
        /// Bytes that were sent to all servers.
        pub bytes_sent: u64,
        /// Bytes that came from all servers.
        pub bytes_received: u64,
        /// Loads that met a record of another key, or of none: misses.
        pub of_another_key: u64,
    }
}

/// Texts of C, as long as it lives.
struct Texts(Vec<CString>);

impl Texts {
    fn add(&mut self, name: &str, text: Option<&[u8]>) -> Result<*const c_char> {
        let text = match text {
            Some(text) => text,
            None => return Ok(null()),
        };
        let text = CString::new(text)
            .map_err(|_| Error::InvalidArgument(format!("{name} has a 0 in it")))?;
        let at = text.as_ptr(); // on the heap: the same when the CString moves
        self.0.push(text);
        Ok(at)
    }

    fn add_text(&mut self, name: &str, text: Option<&str>) -> Result<*const c_char> {
        self.add(name, text.map(str::as_bytes))
    }

    fn add_path(&mut self, name: &str, path: Option<&Path>) -> Result<*const c_char> {
        self.add(name, path.map(|path| path.as_os_str().as_bytes()))
    }
}

impl RedisOptions<'_> {
    fn to_c(self, texts: &mut Texts) -> Result<sys::kvfolio_redis_tier_options> {
        let tls = self.tls.unwrap_or_default();
        Ok(sys::kvfolio_redis_tier_options {
            items_max: self.items_max,
            servers: texts.add_text("servers", Some(self.servers))?,
            user: texts.add_text("user", self.user)?,
            password: texts.add_text("password", self.password)?,
            key_prefix: texts.add_text("key_prefix", self.key_prefix)?,
            tls_ca_file: texts.add_path("ca_file", tls.ca_file)?,
            tls_cert_file: texts.add_path("cert_file", tls.cert_file)?,
            tls_key_file: texts.add_path("key_file", tls.key_file)?,
            tls_server_name: texts.add_text("server_name", tls.server_name)?,
            tls: self.tls.is_some() as i32,
            ttl_ms: self.ttl_ms,
            record_bytes_max: self.record_bytes_max,
            bytes_in_flight_max: self.bytes_in_flight_max,
            bytes_per_poll: self.bytes_per_poll,
            connect_timeout_us: self.connect_timeout_us,
            stall_timeout_us: self.stall_timeout_us,
            breaker_us_min: self.breaker_us_min,
            breaker_us_max: self.breaker_us_max,
            record_key: self.keys.key_to_c(),
            accepted_record_key: self.keys.accepted_to_c(),
            ..sys::kvfolio_redis_tier_options::new()
        })
    }
}

impl TierHandle {
    /// A tier in a Redis Cluster, or in one server. It resolves the names, which may wait for a name
    /// server, and connects in polls. `Unsupported`: the library was built without hiredis.
    ///
    /// ```no_run
    /// use kvfolio::tiers::{OffloadTier, RedisOptions, RedisTls, TierHandle, WritePolicy};
    ///
    /// let options = RedisOptions { servers: "10.0.0.1:7001,10.0.0.2:7001", password: Some("..."),
    ///                              tls: Some(RedisTls::default()), ..RedisOptions::default() };
    /// let mut tier = TierHandle::redis(&options)?;
    /// let now_us = 0; // of your clock
    /// if let Err(error) = tier.wait_until_ready(now_us, 1_000_000) {
    ///     eprintln!("{error}\n{}", tier.describe()); // each node; it goes on trying
    /// }
    /// assert_eq!(tier.redis_counters()?.bytes_received, 0);
    /// // For Offload::new(): what prompts use a second time is worth the network.
    /// let tier = OffloadTier { policy: WritePolicy::SecondUse, ..tier.into() };
    /// # Ok::<(), kvfolio::Error>(())
    /// ```
    pub fn redis(options: &RedisOptions<'_>) -> Result<TierHandle> {
        let mut texts = Texts(Vec::new());
        let options = options.to_c(&mut texts)?;
        let mut out = null_mut();
        call(|error| unsafe { sys::kvfolio_tier_create_redis(&options, &mut out, error) })?;
        Ok(TierHandle::from_raw(out))
    }

    /// `Unsupported`: a tier of another kind.
    pub fn redis_counters(&self) -> Result<RedisCounters> {
        let mut out = sys::kvfolio_redis_tier_counters::new();
        call(|error| unsafe { sys::kvfolio_tier_redis_counters(self.raw(), &mut out, error) })?;
        Ok(RedisCounters::from_c(&out))
    }

    /// At start only, and the one call that waits: until the servers of a tier in Redis have answered.
    /// `TimedOut` names what each answered, or that it did not; the tier goes on trying. Tiers of other kinds
    /// are ready as soon as they are made.
    pub fn wait_until_ready(&mut self, now_us: u64, timeout_us: u64) -> Result<()> {
        let raw = self.raw();
        call(|error| unsafe { sys::kvfolio_tier_wait_until_ready(raw, now_us, timeout_us, error) })
    }

    /// Text for people: of a tier on a disk its directory and sizes, of one in Redis a line for each
    /// node, of the others their name.
    pub fn describe(&self) -> String {
        let length = unsafe { sys::kvfolio_tier_describe(self.raw(), null_mut(), 0) } as usize;
        let mut text = vec![0u8; length + 1];
        let capacity = text.len() as i64;
        unsafe { sys::kvfolio_tier_describe(self.raw(), text.as_mut_ptr().cast(), capacity) };
        text.truncate(length);
        String::from_utf8_lossy(&text).into_owned()
    }
}
