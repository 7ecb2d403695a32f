// SPDX-License-Identifier: Apache-2.0

//! Memory and kernels of NVIDIA cards. The feature `cuda` has it, and links libkvfolio_cuda. Neither
//! needs CUDA: the driver is loaded when a device is asked for, and where there is none that call is
//! [`Error::Unavailable`](crate::Error::Unavailable), with a sentence.
//!
//! ```
//! use kvfolio::cuda::{Device, DeviceMemory, Kernels, MemoryOptions, Stream};
//! use kvfolio::{Error, GroupSpec, Storage};
//!
//! # fn main() -> kvfolio::Result<()> {
//! let device = match Device::open(0) {
//!     Ok(device) => device,
//!     Err(Error::Unavailable(why)) => return Ok(println!("on the CPU: {why}")),
//!     Err(error) => return Err(error),
//! };
//! let kernels = Kernels::load(&device, true)?;
//! let memory = DeviceMemory::new(&device, Some(&kernels), &MemoryOptions::default())?;
//! let group = GroupSpec { head_dim_k: 64, head_dim_v: 64, num_blocks: 64, ..GroupSpec::default() };
//! let mut storage = Storage::with_resource(&[group], memory.clone())?; // then Cache::with_storage()
//! let mut stream = Stream::new(&device)?;
//! // SAFETY: the storage lives until the stream has passed, and nothing else touches it until then.
//! unsafe { kernels.fill(&mut storage.as_mut().view(0)?, 0, stream.handle())? };
//! stream.synchronize()?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`DeviceMemory`] is a [`MemoryResource`](crate::MemoryResource); [`DeviceBuffer`] is a piece of it,
//!   for rows, slots and tables, and [`PinnedBuffer`] memory of the host that a device reaches.
//! - [`Kernels`] has `append`, `gather`, `copy_blocks`, `convert_blocks`, `fill` and attention. They
//!   start work on a stream and return, and take addresses of the device, so they are `unsafe`: each
//!   says what has to be so until the stream has passed.
//! - [`DevicePlan`] keeps the arrays of a step and block tables on the device.
//! - [`BatchAttention`] is attention in the call shape of FlashInfer's wrappers, and [`Graph`] what a
//!   stream is given once, started again as one.
//! - A plan that is padded to an [`AttendCapacity`] ([`Kernels::plan_attend_padded`]) lets one graph serve
//!   every batch, and [`Kernels::plan_on_device`] makes it in the graph; so does `padded` of
//!   [`BatchAttentionOptions`], with plans of the host.
//! - A stream is a [`RawStream`], a `CUstream` or `cudaStream_t`: of [`Stream`], or of an engine.
//! - Each value keeps the device that it was made with.

mod attention;
mod batch;
mod device;
mod graph;
mod kernels;
mod memory;
mod plan;

pub use attention::{AttendCapacity, AttendPlan, AttendShape, DeviceAttention};
pub use batch::{BatchAttention, BatchAttentionOptions, BatchAttentionPlan, PagedKv, PagedView};
pub use device::{available, num_devices, Device, Event, RawStream, Stream};
pub use graph::Graph;
pub use kernels::{kernel_revision, DeviceRows, Kernels, NO_ENTRY};
pub use kvfolio_cuda_sys as sys;
pub use memory::{DeviceBuffer, DeviceMemory, DeviceSource, MemoryOptions, PinnedBuffer};
pub use plan::{DevicePlan, DevicePlanOptions, UploadInfo};
