// SPDX-License-Identifier: Apache-2.0
//
// SAFETY of every call here: a handle lives as long as its value, and C keeps the device.

use super::{sys, Device, RawStream};
use crate::error::call;
use crate::Result;
use std::mem::forget;
use std::os::raw::c_void;
use std::ptr::{null_mut, NonNull};

/// What a stream is given once, started again as one: a CUDA graph. `cuda_graph.h` says what may be
/// captured: [`Kernels`](super::Kernels)' `append`, `gather`, `plan_on_device` and `attend`,
/// [`DevicePlan::apply`](super::DevicePlan::apply), [`BatchAttention::run`](super::BatchAttention::run);
/// and what goes in front of a launch.
#[derive(Debug)]
pub struct Graph {
    raw: NonNull<sys::kvfolio_cuda_graph>,
}

// SAFETY: a handle may move between threads.
unsafe impl Send for Graph {}

/// A capture that was begun: whatever happens, it is ended.
struct Capture<'a> {
    device: &'a Device,
    stream: RawStream,
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_cuda_graph_drop_capture(self.device.raw(), self.stream) }
    }
}

impl Graph {
    /// `record` gives the stream its work, of which none runs; an error of it is the answer, and nothing
    /// is kept. `InvalidArgument`: a null stream, since the legacy one cannot be captured.
    /// `Unavailable`: what was given cannot be captured; the stream is usable.
    ///
    /// # Safety
    /// The stream is one of this device that lives, and no other thread uses it meanwhile. What the
    /// recorded calls ask for "until the stream has passed" holds until the last launch has.
    pub unsafe fn capture(
        device: &Device,
        stream: RawStream,
        record: impl FnOnce() -> Result<()>,
    ) -> Result<Graph> {
        call(|error| unsafe {
            sys::kvfolio_cuda_graph_begin_capture(device.raw(), stream, error)
        })?;
        let capture = Capture { device, stream };
        record()?;
        forget(capture);
        let mut out = null_mut();
        call(|error| unsafe {
            sys::kvfolio_cuda_graph_end_capture(device.raw(), stream, &mut out, error)
        })?;
        Ok(Graph { raw: NonNull::new(out).expect("C gave a graph") })
    }

    /// Starts it behind what the stream was given. Waits for nothing.
    ///
    /// # Safety
    /// The stream is one of the graph's device that lives, or null, and no other thread uses it
    /// meanwhile. What was captured is there: memory, kernels, plans.
    pub unsafe fn launch(&mut self, stream: RawStream) -> Result<()> {
        call(|error| unsafe { sys::kvfolio_cuda_graph_launch(self.raw.as_ptr(), stream, error) })
    }

    /// A `CUgraphExec`, valid as long as the graph.
    pub fn handle(&self) -> *mut c_void {
        unsafe { sys::kvfolio_cuda_graph_handle(self.raw.as_ptr()) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        unsafe { sys::kvfolio_cuda_graph_destroy(self.raw.as_ptr()) }
    }
}
