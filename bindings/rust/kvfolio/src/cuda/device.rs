// SPDX-License-Identifier: Apache-2.0
//
// SAFETY of every call here: a handle lives as long as its value, and C keeps what it was made with.

use super::sys;
use crate::error::{call, constant};
use crate::Result;
use std::os::raw::c_void;
use std::ptr::{null_mut, NonNull};

/// A `CUstream` or `cudaStream_t`. A null one is the legacy default stream of the device.
pub type RawStream = *mut c_void;

/// Ok: a driver that is new enough, and at least one device. `Unavailable`: what is missing.
pub fn available() -> Result<()> {
    call(|error| unsafe { sys::kvfolio_cuda_available(error) })
}

/// How many devices the driver has. The errors of [`available`].
pub fn num_devices() -> Result<i32> {
    let mut out = 0;
    call(|error| unsafe { sys::kvfolio_cuda_num_devices(&mut out, error) })?;
    Ok(out)
}

/// One card, through its primary context, which the run-time of CUDA and torch use too. Several
/// threads may use it at once.
pub struct Device {
    raw: NonNull<sys::kvfolio_cuda_device>,
}

// SAFETY: the header says that several threads may use a device at once.
unsafe impl Send for Device {}
unsafe impl Sync for Device {}

impl Device {
    /// `Unavailable`: see [`available`]. `InvalidArgument`: there is no device of this number.
    /// `Unsupported`: a card below compute capability 8.0.
    pub fn open(ordinal: i32) -> Result<Device> {
        let mut out = null_mut();
        call(|error| unsafe { sys::kvfolio_cuda_device_open(ordinal, &mut out, error) })?;
        Ok(Device { raw: NonNull::new(out).expect("C gave a device") })
    }

    pub(super) fn raw(&self) -> *const sys::kvfolio_cuda_device {
        self.raw.as_ptr()
    }

    fn info(&self) -> sys::kvfolio_cuda_device_info {
        let mut out = sys::kvfolio_cuda_device_info::new();
        call(|error| unsafe { sys::kvfolio_cuda_device_get_info(self.raw(), &mut out, error) })
            .expect("a device has its numbers");
        out
    }

    /// "NVIDIA H100 80GB HBM3".
    pub fn name(&self) -> &str {
        unsafe { constant(sys::kvfolio_cuda_device_name(self.raw())) }
    }

    /// "cuda-sm90": the architecture, since others may round otherwise.
    pub fn target(&self) -> &str {
        unsafe { constant(sys::kvfolio_cuda_device_target(self.raw())) }
    }

    /// Its number.
    pub fn ordinal(&self) -> i32 {
        self.info().ordinal
    }

    /// Compute capability: (9, 0) of an H100.
    pub fn capability(&self) -> (i32, i32) {
        let info = self.info();
        (info.capability_major, info.capability_minor)
    }

    /// How many multiprocessors it has.
    pub fn num_multiprocessors(&self) -> i32 {
        self.info().num_multiprocessors
    }

    /// Ok, or `Unavailable` with what ended the context. Asks no driver.
    pub fn status(&self) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_device_status(self.raw(), error) })
    }

    /// Waits for all that was started on the device. The one call that does.
    pub fn synchronize(&self) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_device_synchronize(self.raw(), error) })
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("ordinal", &self.ordinal())
            .field("name", &self.name())
            .field("target", &self.target())
            .finish()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_cuda_device_destroy(self.raw.as_ptr()) }
    }
}

/// A stream that does not wait for the legacy default one. Those of an engine serve as well: calls take a
/// [`RawStream`].
#[derive(Debug)]
pub struct Stream {
    raw: NonNull<sys::kvfolio_cuda_stream>,
}

// SAFETY: a handle may move between threads.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream of the device, which it keeps.
    pub fn new(device: &Device) -> Result<Stream> {
        let mut out = null_mut();
        call(|error| unsafe { sys::kvfolio_cuda_stream_create(device.raw(), &mut out, error) })?;
        Ok(Stream { raw: NonNull::new(out).expect("C gave a stream") })
    }

    /// Valid as long as the stream.
    pub fn handle(&self) -> RawStream {
        unsafe { sys::kvfolio_cuda_stream_handle(self.raw.as_ptr()) }
    }

    /// Whether all that it was given is done. Does not wait.
    pub fn is_done(&mut self) -> Result<bool> {
        let mut out = 0;
        call(|error| unsafe { sys::kvfolio_cuda_stream_done(self.raw.as_ptr(), &mut out, error) })?;
        Ok(out != 0)
    }

    /// Waits until it is.
    pub fn synchronize(&mut self) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_stream_synchronize(self.raw.as_ptr(), error) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_cuda_stream_destroy(self.raw.as_ptr()) }
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    raw: NonNull<sys::kvfolio_cuda_event>,
}

// SAFETY: a handle may move between threads.
unsafe impl Send for Event {}

impl Event {
    /// An event of the device, which it keeps. It has passed until it is recorded.
    pub fn new(device: &Device) -> Result<Event> {
        let mut out = null_mut();
        call(|error| unsafe { sys::kvfolio_cuda_event_create(device.raw(), &mut out, error) })?;
        Ok(Event { raw: NonNull::new(out).expect("C gave an event") })
    }

    /// A `CUevent`, valid as long as the event.
    pub fn handle(&self) -> *mut c_void {
        unsafe { sys::kvfolio_cuda_event_handle(self.raw.as_ptr()) }
    }

    /// The point behind all that the stream was given so far.
    pub fn record(&mut self, stream: &mut Stream) -> Result<()> {
        // SAFETY: a stream that lives.
        unsafe { self.record_on(stream.handle()) }
    }

    /// The same of any stream.
    ///
    /// # Safety
    /// A stream of the same device that lives, or null; no other thread uses it meanwhile.
    pub unsafe fn record_on(&mut self, stream: RawStream) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_event_record(self.raw.as_ptr(), stream, error) })
    }

    /// What the stream is given from now on begins when the event has passed.
    pub fn hold_back(&mut self, stream: &mut Stream) -> Result<()> {
        // SAFETY: a stream that lives.
        unsafe { self.hold_back_on(stream.handle()) }
    }

    /// The same of any stream.
    ///
    /// # Safety
    /// As [`Event::record_on`].
    pub unsafe fn hold_back_on(&mut self, stream: RawStream) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_event_hold_back(self.raw.as_ptr(), stream, error) })
    }

    /// Whether it has passed. Does not wait.
    pub fn has_passed(&mut self) -> Result<bool> {
        let mut out = 0;
        call(|error| unsafe {
            sys::kvfolio_cuda_event_passed(self.raw.as_ptr(), &mut out, error)
        })?;
        Ok(out != 0)
    }

    /// Waits until it has passed.
    pub fn synchronize(&mut self) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_event_synchronize(self.raw.as_ptr(), error) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_cuda_event_destroy(self.raw.as_ptr()) }
    }
}
